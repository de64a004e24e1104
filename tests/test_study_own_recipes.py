"""Recipes of one's own in studies: records hold them whole, and suffice without the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from floatscope.errors import FloatscopeError
from floatscope.lab.run import records
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.study.choose import choose
from floatscope.lab.study.folder import open_study
from floatscope.lab.study.own import try_out
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.summary import summarize
from floatscope.lab.study.toml import plan_from, read_study
from floatscope.recipes import CATALOGUE, Recipe
from tests import tiny
from tests.test_study import assert_one_error, floatscope

MINE = """
base = "mxfp8"
operands.gradient = "mxfp8-e5m2"
stored = {weights = "bf16", update = "stochastic"}
"""
TABLE = '{name = "first-kept", base = "mxfp6", kept = {first = 1}}'
STUDY = (
    tiny.STUDY_TOML.replace('"fp16-mixed"', f'"recipes/mine.toml", {TABLE}')
    .replace("seeds = [1, 2]", "seeds = [1]")
    .replace("ulp_reruns = 1", "ulp_reruns = 0")
    .replace("steps = 12", "steps = 4")
    .replace("eval_every = 4", "eval_every = 2")
)
RESULTS = Path(__file__).parent.parent / "results"


def written(folder: Path) -> Path:
    """A study file whose recipe file lies in a folder beside it."""
    (folder / "recipes").mkdir()
    (folder / "recipes" / "mine.toml").write_text(MINE)
    (folder / "tiny.toml").write_text(STUDY)
    return folder / "tiny.toml"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a finished study in `done`, whose files are gone."""
    from floatscope.lab.text.world import build_world

    path = tmp_path_factory.mktemp("place")
    (path / "files").mkdir()
    written(path / "files")
    (path / "text.txt").write_text(build_world().val_text()[:60_000])
    run = floatscope("study", "run", "files/tiny.toml", "--text", "text.txt", "--out", "done",
                     cwd=path)  # fmt: skip
    assert run.returncode == 0, run.stderr
    shutil.rmtree(path / "files")
    return path


def test_records_hold_the_whole_definition(place: Path) -> None:
    study = open_study(place / "done")
    assert study.plan.recipes == ("fp32", "mine", "first-kept")
    mine, kept = study.plan.own_recipes
    assert mine == Recipe.from_dict({
        "name": "mine", "base": "mxfp8", "operands": {"gradient": "mxfp8-e5m2"},
        "stored": {"weights": "bf16", "update": "stochastic"},
    })  # fmt: skip
    assert (kept.name, kept.kept.first, kept.operands) == (
        "first-kept", 1, CATALOGUE["mxfp6"].operands
    )  # fmt: skip
    assert "toml" not in (place / "done" / "study.json").read_text()
    finished = {plan.recipe.name: run.manifest.plan for plan, run in study.finished()}
    assert finished["mine"]["recipe"] == mine.to_dict()
    assert finished["first-kept"]["recipe"] == kept.to_dict()
    for plan in finished.values():
        assert RunPlan.from_dict(plan).to_dict() == plan


def test_show_report_export_and_decide_need_no_file(place: Path) -> None:
    shown = floatscope("study", "show", "done", cwd=place)
    assert "3 of 3 runs finished" in shown.stdout
    said = "mine is this study's own recipe: mxfp8 with its own operands, stored"
    assert said in " ".join(shown.stdout.split())
    assert floatscope("report", "done", "-o", "page.html", "--static", cwd=place).returncode == 0
    page = (place / "page.html").read_text()
    assert "input gradient: gradient: mxfp8-e5m2" in page
    assert "floatscope study run done --text text.txt --out again" in page
    assert floatscope("export", "done", "-o", "e.json", cwd=place).returncode == 0
    (mine, _) = json.loads((place / "e.json").read_text())["plan"]["own_recipes"]
    assert mine["operands"]["gradient"]["format"] == "mxfp8-e5m2"
    decided = floatscope("study", "decide", "done", cwd=place)
    assert "first-kept" in decided.stdout
    assert "Traceback" not in decided.stderr


def test_a_study_goes_on_from_its_folder_without_the_file(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "half"
    shutil.copytree(place / "done", out)
    (lost,) = out.glob("runs/mine-s1-*")
    shutil.rmtree(lost)
    again = floatscope("study", "run", out, "--text", "text.txt", cwd=place)
    assert again.returncode == 0, again.stderr
    assert "3 runs, 2 of them finished already" in again.stderr
    for (plan, run), (_, reference) in zip(
        open_study(out).finished(), open_study(place / "done").finished(), strict=True
    ):
        assert run.manifest.run_id == reference.manifest.run_id
        for table in records.COLUMNS:
            mine, theirs = run.table(table), reference.table(table)
            for column in set(mine) - set(records.WALL_CLOCK):
                assert repr(mine[column]) == repr(theirs[column]), (plan.label, table, column)
    assert_one_error(
        floatscope("study", "run", "quick", "--recipes", "fp32,files/recipes/mine.toml", cwd=place),
        "there is no recipe file files/recipes/mine.toml. A study that was begun goes on without "
        "it: floatscope study run FOLDER.",
    )


def test_compare_knows_the_recipes_of_a_study(place: Path) -> None:
    args = ("--recipes", "first-kept,mxfp6", "--batch", "2", "--text", "text.txt", "--json")
    (run,) = (place / "done").glob("runs/mine-s1-*")
    for folder in ("done", run):
        done = floatscope("compare", folder, *args, cwd=place)
        assert done.returncode == 0, done.stderr
        (state, _) = json.loads(done.stdout)["states"]
        assert {arm["recipe"] for arm in state["arms"]} == {"fp32", "first-kept", "mxfp6"}


def test_a_changed_definition_is_another_run_and_said(tmp_path: Path) -> None:
    before = read_study(written(tmp_path))
    (tmp_path / "recipes" / "mine.toml").write_text(MINE.replace("e5m2", "e4m3"))
    after = read_study(tmp_path / "tiny.toml")
    ids = [{run.label: run.run_id("d") for run in plan.runs()} for plan in (before, after)]
    assert ids[0]["mine-s1"] != ids[1]["mine-s1"]
    assert ids[0]["first-kept-s1"] == ids[1]["first-kept-s1"]
    from floatscope.lab.study.folder import changes

    assert changes(before, after) == [
        "own_recipes.mine.operands.gradient.format was mxfp8-e5m2, now mxfp8-e4m3",
        "own_recipes.mine.operands.gradient.rule was None, now rceil",
    ]


def test_words_for_people_change_no_run(tmp_path: Path) -> None:
    before = read_study(written(tmp_path))
    (tmp_path / "recipes" / "mine.toml").write_text(MINE + 'summary = "in other words"\n')
    after = read_study(tmp_path / "tiny.toml")
    assert after.own_recipes[0].summary != before.own_recipes[0].summary
    assert before.asked_sha256("d") == after.asked_sha256("d")


def test_recipes_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    plan = choose("quick", recipes=["fp32", "recipes/mine.toml"])
    assert plan.recipes == ("fp32", "mine")
    assert plan.own_recipes == (Recipe.from_toml("recipes/mine.toml"),)
    one = choose("tiny.toml", recipes=["fp32", "first-kept"])  # by its name in the study file
    assert [recipe.name for recipe in one.own_recipes] == ["first-kept"]
    assert choose("tiny.toml", recipes=["fp32", "mxfp8"]).own_recipes == ()


def test_a_file_that_says_what_the_catalogue_says_is_the_catalogues(tmp_path: Path) -> None:
    (tmp_path / "mxfp8.toml").write_text('base = "mxfp8"\n')
    plan = plan_from({"recipes": ["fp32", "mxfp8.toml"]}, "x", tmp_path)
    assert plan == plan_from({"recipes": ["fp32", "mxfp8"]}, "x")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("absent.toml", "there is no recipe file"),
        ("broken.toml", "broken.toml is not TOML"),
        ("wrong.toml", "unknown key 'operand'. Did you mean 'operands'?"),
        ("several.toml", "this one has recipes in the tables a, b. Write each into a file"),
        ("listed.toml", "this one has recipes in the tables recipe"),
        ("study.toml", "study.toml is a study file, not a recipe: floatscope study run"),
        ("mxfp8.toml", "mxfp8 is the catalogue's name for another recipe; give yours a name"),
        ("other/mine.toml", "two different recipes are called mine. Give one another name"),
        ("minus", "unknown recipe 'minus'"),
        ("mine.toml", "recipes names one twice: mine, mine"),
        ({"base": "mxfp8"}, "a recipe needs a name"),
        (3, "recipes.1 = 3: input should be a valid string"),
    ],
)
def test_mistakes_are_one_message(tmp_path: Path, recipe: object, message: str) -> None:
    for name, content in {
        "mine": MINE, "broken": "base =", "wrong": 'operand = "mxfp8"', "mxfp8": 'base = "mxfp6"',
        "several": '[a]\nbase = "mxfp8"\n[b]\nbase = "mxfp6"\n',
        "listed": '[[recipe]]\nname = "a"\nbase = "mxfp8"\n', "study": STUDY,
        "other/mine": 'base = "mxfp6"\nkept.first = 1\n',
    }.items():  # fmt: skip
        path = tmp_path / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    with pytest.raises(FloatscopeError) as error:
        plan_from({"recipes": ["mine.toml", recipe]}, "x", tmp_path)
    assert message in str(error.value)


def test_a_recipe_file_is_no_study_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(MINE)
    with pytest.raises(FloatscopeError, match="base is a recipe's key, not a study's"):
        choose(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kept": {"names": ["blok.*"]}}, "kept.names has the pattern 'blok.*'"),
        ({"kept": {"first": 100}}, "mine converted nothing"),
        ({"stored": {"weights": "bf16", "keep": ["x"]}}, "stored.keep has the pattern 'x'"),
    ],
)
def test_what_a_study_cannot_train_is_said_before_it_begins(
    changes: dict[str, object], message: str
) -> None:
    mine = Recipe.from_dict({"name": "mine", "base": "mxfp8", **changes})
    plan = plan_with(mine)
    with pytest.raises(FloatscopeError) as error:
        try_out(plan.own_recipes, plan, "auto")
    assert str(error.value).startswith("the recipe mine cannot train this study's model: ")
    assert message in str(error.value)


def plan_with(*own: Recipe) -> StudyPlan:
    names = ("fp32", *(recipe.name for recipe in own))
    return StudyPlan(name="x", recipes=names, own_recipes=own, model=tiny.MODEL, train=tiny.TRAIN)


def test_a_step_that_overflows_is_the_studys_to_find() -> None:
    mine = Recipe.from_dict({
        "name": "mine", "base": "fp16-mixed",
        "loss_scaling": {"scale": 2.0**120, "skips_in_a_row": 1},
    })  # fmt: skip
    try_out([mine], plan_with(mine), "emulated")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda mine: (mine, mine), "mine is another recipe's name"),
        (lambda mine: (replace(mine, name="fp32"),), "fp32 is another recipe's name"),
        (lambda mine: (mine, replace(mine, name="more")), "more is not among the recipes"),
    ],
)
def test_a_plan_is_of_one_piece(
    change: Callable[[Recipe], tuple[Recipe, ...]], message: str
) -> None:
    mine = Recipe.from_dict({"name": "mine", "base": "mxfp8", "kept": {"first": 1}})
    with pytest.raises(ValueError, match=message):
        StudyPlan(name="x", recipes=("fp32", "mine"), own_recipes=change(mine))


def test_published_studies_load_and_keep_their_runs() -> None:
    for path in sorted(RESULTS.glob("*/runs")):
        study = open_study(path.parent)
        assert study.plan.own_recipes == ()
        assert study.num_finished() == len(study.plan.runs()), path
    assert summarize(open_study(RESULTS / "lowbit")).remarks == ()
