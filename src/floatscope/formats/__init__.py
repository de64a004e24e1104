"""Number formats as data: value sets, the catalogue, and one value at a time.

Standard library only. A format is its value set; what a cast does at the edges is a choice of the
cast, not of the format.
"""

from floatscope.formats.block_format import BlockFormat as BlockFormat
from floatscope.formats.block_format import ScaleRule as ScaleRule
from floatscope.formats.catalogue import BLOCKS as BLOCKS
from floatscope.formats.catalogue import CATALOGUE as CATALOGUE
from floatscope.formats.catalogue import FLOATS as FLOATS
from floatscope.formats.catalogue import INTEGERS as INTEGERS
from floatscope.formats.catalogue import Format as Format
from floatscope.formats.float_format import FloatFormat as FloatFormat
from floatscope.formats.float_format import Specials as Specials
from floatscope.formats.int_format import IntFormat as IntFormat
from floatscope.formats.names import format as format
from floatscope.formats.values import classify as classify
from floatscope.formats.values import decode as decode
from floatscope.formats.values import encode as encode
from floatscope.formats.values import neighbors as neighbors
from floatscope.formats.values import ulp as ulp
