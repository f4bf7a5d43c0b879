"""Judging at sites that answer in this process: equal numbers, refusals, and answers that lie."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from judged_sites import ALLOWS, train_two
from table_sites import WHOLE, make_tables, table_job
from tiny_sites import LoopbackGrid, make_images, write_policy

from unseen.deploy.coordinator.coordinator import RoundPolicy
from unseen.deploy.coordinator.judge_federation import JudgeRequest, coordinate_judging
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.judge_job import JudgeJob
from unseen.deploy.site.approvals import Approval, Approvals
from unseen.errors import UnseenError
from unseen.judging import Judgement, judge
from unseen.judging.judge_sites import JudgeOptions, open_models
from unseen.judging.judged_model import ModelSpec, describe_model
from unseen.runner.run import run
from unseen.serving import export_model

TERMS = RoundPolicy(deadline=20.0)
PARTS = ("sites", "pooled", "worst", "models", "task", "classes", "left")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("judged") / "images")


@pytest.fixture(scope="module")
def runs(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return train_two(images, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def grid(images: Path, tmp_path: Path) -> LoopbackGrid:
    made = LoopbackGrid(images, tmp_path / "sites")
    for site in made.sites:
        write_policy(site.home, ALLOWS)
    return made


def ask(*models: Path, sites: tuple[str, ...] = ("a", "b", "c", "held"), **options: object) -> JudgeRequest:
    return JudgeRequest(tuple(map(str, models)), JudgeOptions(threads=1, **options), sites=sites)


def go(grid: LoopbackGrid, request: JudgeRequest, out: Path, terms: RoundPolicy = TERMS) -> Judgement:
    return coordinate_judging(grid, request, out=out, terms=terms)  # type: ignore[arg-type]


def test_sites_give_the_numbers_of_one_machine_to_the_bit(grid, runs, images, tmp_path) -> None:
    there = go(grid, ask(*runs), tmp_path / "out")
    here = judge(*runs, data=images, threads=1)
    for part in PARTS:
        assert there.values[part] == here.values[part], part
    assert there.values["refused"] == {}
    assert there.sites.keys() == {"a", "b", "c", "held"}
    assert [test["test"] for test in there.tests] == ["McNemar", "DeLong"]


def test_nothing_but_metrics_leaves_a_site(grid, runs, tmp_path) -> None:
    go(grid, ask(*runs), tmp_path / "out")
    for site, question, answer in grid.log:
        samples = sum(answer.header.get("counts", {}).values())
        if question.header["ask"] == "census":
            assert answer.header.keys() == {"site", "counts", "confirms"} and not answer.arrays and samples
        else:
            assert answer.header.keys() == {"site", "min_group", "groups"}
            # no array has an axis as long as the site has samples
            own = next(q for s, q, a in grid.log if s == site and a.header.get("counts"))
            assert own is not None
            count = int(answer.arrays["counts"].sum())
            assert all(count not in array.shape for array in answer.arrays.values())


def test_policies_decide_site_by_site(grid, runs, tmp_path) -> None:
    write_policy(grid.sites[0].home, "min_group = 5\n")
    write_policy(grid.sites[1].home, ALLOWS + "x = 1\n")
    write_policy(grid.sites[2].home, 'evaluate = ["test"]\n' + ALLOWS)
    found = go(grid, ask(runs[0]), tmp_path / "out")
    assert list(found.sites) == ["held"]
    reasons = found.values["refused"]
    assert "jobs that only evaluate (policy.toml: [judge] allow = false)" in reasons["a"]
    assert "policy cannot be used" in reasons["b"]
    assert "evaluation on the split 'target'" in reasons["c"]


def test_a_site_that_counts_large_groups_only_leaves_out_classes_or_refuses(grid, runs, tmp_path) -> None:
    write_policy(grid.sites[0].home, ALLOWS.replace("min_group = 5", "min_group = 9"))
    write_policy(grid.sites[1].home, ALLOWS.replace("min_group = 5", "min_group = 50"))
    found = go(grid, ask(runs[0]), tmp_path / "out")
    assert found.sites["a"]["per_class"] == {"x": 0, "y": 0, "z": 9}  # it has 7, 8 and 9
    assert found.sites["a"]["metrics"][0]["auroc"]["value"] is None
    assert "no class of site 'b' has 50 samples" not in str(found.values)  # details stay in its own log
    assert "its data cannot be used" in found.values["refused"]["b"]


def test_onnx_files_run_where_the_policy_says_so(grid, runs, images, tmp_path) -> None:
    file = export_model(runs[0], out=tmp_path / "model.onnx").file
    for site in grid.sites[:2]:
        write_policy(site.home, ALLOWS.replace("onnx = true", "onnx = false"))
    found = go(grid, ask(file), tmp_path / "out")
    here = judge(file, data=images, domains=("c", "held"), threads=1)
    assert found.sites == here.sites and found.pooled == here.pooled
    assert "running an ONNX file" in found.values["refused"]["a"]
    trained = judge(runs[0], data=images, domains=("c", "held"), threads=1)
    assert found.metric("accuracy") == trained.metric("accuracy")
    assert found.metric("auroc") == pytest.approx(trained.metric("auroc"), abs=1e-6)


def test_nobody_left_is_one_clear_line(grid, runs, tmp_path) -> None:
    for site in grid.sites:
        write_policy(site.home, "min_group = 5\n")
    with pytest.raises(UnseenError, match="no site takes part; refused: a: refused by the site's policy"):
        go(grid, ask(runs[0]), tmp_path / "out")
    write_policy(grid.sites[0].home, ALLOWS)
    with pytest.raises(UnseenError, match=r"1 sites judged the model, at least 2 are needed \(--min-sites\)"):
        go(grid, ask(runs[0]), tmp_path / "out", RoundPolicy(deadline=20.0, min_sites=2))


def test_bytes_that_are_no_model_are_one_line_from_the_site(grid, runs) -> None:
    site = grid.sites[0]
    junk = b"\x00 this is no model"
    for kind, said in (("unseen", "is not a model written by unseen"), ("onnx", "is no ONNX model")):
        spec = ModelSpec("junk", kind, hashlib.sha256(junk).hexdigest())
        job = JudgeJob((spec,), JudgeOptions(threads=1), "classification", 8)
        message = SiteMessage(
            {"ask": "judge", "job": job.to_dict()}, {"model 0": np.frombuffer(junk, np.uint8)}
        )
        answer = site.answer(message)
        assert said in answer.header["error"] and "\n" not in answer.header["error"]
        assert not answer.arrays
    other = SiteMessage(message.header, {"model 0": np.frombuffer(b"other", np.uint8)})
    assert "not those that the job names" in site.answer(other).header["error"]
    assert "without its models" in site.answer(SiteMessage(message.header)).header["error"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda job: job.pop("models"), "one or two models"),
        (lambda job: job.update(image_size="8"), "image size"),
        (lambda job: job.update(run_id="../../x"), "run"),
        (lambda job: job.update(run_id="judge-other"), "does not follow"),
        (lambda job: job["options"].update(batch_size="1"), "options"),
        (lambda job: job["options"].pop("threads"), "options"),
        (lambda job: job["models"][0].update(kind="pickle"), "unknown kind of model"),
        (lambda job: job["models"][0].update(classes=[1]), "unreadably"),
    ],
)
def test_a_job_of_another_form_is_refused_by_the_site(grid, runs, change: Callable, said: str) -> None:
    spec, _ = describe_model(runs[0])
    values = json.loads(json.dumps(JudgeJob((spec,), JudgeOptions(), "classification", 8).to_dict()))
    change(values)
    answer = grid.sites[0].answer(SiteMessage({"ask": "census", "job": values}))
    assert said in answer.header["error"]


def test_a_person_can_be_asked_first(grid, runs, tmp_path) -> None:
    write_policy(grid.sites[0].home, "confirm = true\n" + ALLOWS)
    spec, content = describe_model(runs[0])
    job = JudgeJob.of(open_models([spec], [content]), JudgeOptions(threads=1))
    approvals = Approvals(grid.sites[0].home)
    approvals._keep(Approval(job.run_id, job.digest.hex(), job.summary, "now", "denied"))
    found = go(grid, ask(runs[0]), tmp_path / "out")
    assert f"job {job.run_id} was denied by a person" in found.values["refused"]["a"]
    approvals.decide(job.run_id, "approved")
    assert "a" in go(grid, ask(runs[0]), tmp_path / "again").sites


def test_a_table_is_judged_on_columns_that_the_site_lists(tmp_path) -> None:
    """N1: any column could be called the target, and the site told its texts and how often each occurs."""
    tables = make_tables(tmp_path / "tables")
    trained = run(table_job(tables), out=tmp_path / "run").folder
    grid = LoopbackGrid(tables, tmp_path / "sites", suffix=".csv")
    for site in grid.sites:
        write_policy(site.home, ALLOWS)
    with pytest.raises(
        UnseenError, match=r"on the column 'ward' \(policy.toml: \[judge\] target_columns = target"
    ):
        go(grid, ask(trained, target_column="ward"), tmp_path / "refused")
    assert not any("counts" in answer.header for _, _, answer in grid.log)
    for site in grid.sites:
        write_policy(site.home, ALLOWS + "target_columns = []\n")
    with pytest.raises(UnseenError, match="target_columns = none"):
        go(grid, ask(trained), tmp_path / "refused")


def test_an_onnx_file_reads_no_other_file(grid, tmp_path, monkeypatch) -> None:
    """N2: weights of an ONNX file may be said to be in another file, such as a key in the site's home."""
    import onnx

    home = grid.sites[0].home
    home.mkdir(parents=True, exist_ok=True)
    np.arange(6, dtype=np.float32).tofile(home / "secret.bin")
    monkeypatch.chdir(home)
    for place in ("secret.bin", str(home / "secret.bin"), "../a/secret.bin"):
        weights = onnx.TensorProto(name="w", data_type=1, dims=[3, 2], data_location=1)
        for key, value in (("location", place), ("offset", "0"), ("length", "24")):
            weights.external_data.add(key=key, value=value)
        values = [
            onnx.helper.make_tensor_value_info(name, 1, ["n", n]) for name, n in (("x", 3), ("logits", 2))
        ]
        node = onnx.helper.make_node("MatMul", ["x", "w"], ["logits"])
        graph = onnx.helper.make_graph([node], "g", values[:1], values[1:], [weights])
        versions = [onnx.helper.make_opsetid("", 17)]
        content = onnx.helper.make_model(graph, opset_imports=versions, ir_version=9).SerializeToString()
        spec = ModelSpec("spy", "onnx", hashlib.sha256(content).hexdigest(), ("x", "y"))
        with pytest.raises(UnseenError, match="is no ONNX model that onnxruntime can read"):
            open_models([spec], [content])


def spoil_array(name: str, change: Callable) -> Callable:
    def spoil(site: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        if site != "b" or question.header["ask"] != "judge":
            return answer
        arrays = dict(answer.arrays)
        arrays[name] = change(arrays[name].copy() if name in arrays else None)
        return replace(answer, arrays={key: each for key, each in arrays.items() if each is not None})

    return spoil


def put(array: np.ndarray, value: float) -> np.ndarray:
    array.reshape(-1)[0] = value
    return array


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("counts", lambda array: array + 1),
        ("counts", lambda array: None),
        ("rows", lambda array: np.zeros(3)),
        ("model 0/confusion", lambda array: array[::-1].copy()),
        ("model 0/confusion", lambda array: array.astype(np.float64)),
        ("model 0/detail:ranking", lambda array: array + 1),
        ("model 0/detail:proper_after", lambda array: put(array, np.nan)),
        ("model 0/detail:squares_after", lambda array: put(array, -1.0)),
        ("rankings/areas", lambda array: put(array, 1.5)),
        ("rankings/areas", lambda array: put(array, np.nan)),
        ("rankings/covariance", lambda array: put(array, -0.1)),
        ("rankings/covariance", lambda array: put(array, np.inf)),
        ("rankings/covariance", lambda array: array * 0 + np.array([[0, 1], [1, 0]]) * 0.5),
        ("rankings/counts", lambda array: array + 1),
        ("rankings/precision", lambda array: put(array, -1.0)),
        ("paired", lambda array: array + 0.5),
        ("paired", lambda array: array + np.array([1.0, 0.0])),
        ("paired", lambda array: array + 1000),
    ],
)
def test_answers_that_cannot_be_are_set_aside(grid, runs, tmp_path, name: str, change: Callable) -> None:
    """N3: what no models can have given is a reason, and the other sites are judged."""
    grid.spoil = spoil_array(name, change)
    found = go(grid, ask(*runs), tmp_path / "out")
    assert list(found.sites) == ["a", "c", "held"]
    assert found.values["refused"]["b"].startswith("sent ")


@pytest.mark.parametrize(
    "counts", [None, {}, {"x": -1}, {"x": True}, {"other": 9}, {"x": 1 << 60}, {"x": 8.0}, [8]]
)
def test_a_census_that_cannot_be_is_refused(grid, runs, tmp_path, counts: object) -> None:
    """N3: as above, of the numbers of samples."""

    def spoil(site: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        lies = site == "b" and question.header["ask"] == "census"
        return replace(answer, header={**answer.header, "counts": counts}) if lies else answer

    grid.spoil = spoil
    assert "b" in go(grid, ask(runs[0]), tmp_path / "out").values["refused"]


def test_tables_and_their_groups_are_judged_at_the_sites(tmp_path) -> None:
    tables = make_tables(tmp_path / "tables")
    trained = run(table_job(tables), out=tmp_path / "run").folder
    options = {"target_column": "target", "group_columns": ("ward",)}
    grid = LoopbackGrid(tables, tmp_path / "sites", suffix=".csv")
    for site in grid.sites:
        write_policy(site.home, ALLOWS.replace('"kind"', '"ward"'))
    found = go(grid, ask(trained, **options), tmp_path / "out")
    here = judge(trained, data=tables / WHOLE, group_columns=("ward",), threads=1)
    assert found.sites == here.sites and found.pooled == here.pooled
    assert [each["name"] for each in found.sites["a"]["groups"][0]["groups"]] == ["north", "only a", "south"]
    asked = [answer for _, question, answer in grid.log if question.header["ask"] == "census"]
    assert not any("only" in json.dumps(answer.header) for answer in asked)

    def spoil(site: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        if site != "a" or question.header["ask"] != "judge":
            return answer
        return replace(
            answer, arrays={**answer.arrays, "group 0/counts": answer.arrays["group 0/counts"] + 1}
        )

    grid.spoil = spoil
    lied = go(grid, ask(trained, **options), tmp_path / "lied")
    assert "groups of other sizes" in lied.values["refused"]["a"]
    for site in grid.sites:
        write_policy(site.home, ALLOWS)
    with pytest.raises(UnseenError, match="groups of the column 'ward'"):
        go(grid, ask(trained, **options), tmp_path / "refused")
