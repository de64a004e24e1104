"""The lecture's model: one small character GPT, its text, and how it is trained.

world, tok = build_world(), CharTokenizer(ALPHABET)
base, bits = load_or_train_base_model(world, tok)
data = torch.tensor(tok.encode(world.train_text()))
x, y = get_batch(data, 32, 96, torch.Generator().manual_seed(0))
"""

from floatscope.lab.base_model.cache import load_or_train_base_model as load_or_train_base_model
from floatscope.lab.base_model.config import BASE_CONFIG as BASE_CONFIG
from floatscope.lab.base_model.config import BASE_TRAINING as BASE_TRAINING
from floatscope.lab.base_model.config import BaseConfig as BaseConfig
from floatscope.lab.base_model.config import Training as Training
from floatscope.lab.base_model.data import CharTokenizer as CharTokenizer
from floatscope.lab.base_model.data import get_batch as get_batch
from floatscope.lab.base_model.model import CharGPT as CharGPT
from floatscope.lab.base_model.model import make_model as make_model
from floatscope.lab.base_model.training import bits_per_char as bits_per_char
from floatscope.lab.base_model.training import loss_of as loss_of
from floatscope.lab.base_model.training import lr_at as lr_at
from floatscope.lab.base_model.training import make_optimizer as make_optimizer
from floatscope.lab.base_model.training import single_threaded as single_threaded
from floatscope.lab.base_model.training import train as train
from floatscope.lab.text.world import ALPHABET as ALPHABET
from floatscope.lab.text.world import build_world as build_world
