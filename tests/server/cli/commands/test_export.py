"""`gradwatch export`: files that others read, of a real aggregator fed by hand."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradwatch_server.cli.app import app
from gradwatch_server.cli.export.about import ExportSelection
from gradwatch_server.cli.export.formats import FORMATS
from gradwatch_server.cli.export.job import ExportProgress, IncompleteExportError, Job
from gradwatch_server.cli.export.source import Source
from gradwatch_server.clock import Clock
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_wire import Bye, Column, Stats
from tests.page.feeding import LAYERS, POISON_STEP, POISONED, STEPS, feed, more, norm_of
from tests.support.aggregator import Aggregator, Serve
from tests.support.records import stats_of

pytestmark = pytest.mark.slow

RUN = "sent-away"
INF_STEP = STEPS


@pytest.fixture(scope="module")
def fed(service: Aggregator) -> Aggregator:
    """A run of 62 steps: one with NaN in a layer, then one with Inf."""
    peer = feed(service, RUN)
    peer.send(
        Stats(
            manifest_id=1,
            step=INF_STEP,
            scalars={"loss": -math.inf},
            columns={"l2": Column.pack("<f8", [math.inf, *[1.0] * (len(LAYERS) - 1)])},
        )
    )
    peer.send(Bye(reason="done"))
    peer.acked()
    service.health_of_ended(RUN)
    return service


@pytest.fixture
def export(fed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the command in an empty directory: `export("--to", "csv")`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADWATCH_URL", fed.url)
    return lambda *arguments: CliRunner().invoke(app, ["export", *arguments])


def done(result: Any) -> Path:
    """Return where a complete export is."""
    assert result.exit_code == 0, result.output
    return Path(json.loads(result.stdout)["path"]) if result.stdout[0] == "{" else Path()


def told(result: Any) -> str:
    """Return the one line of an error."""
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    return str(line)


def files_of(directory: Path) -> dict[str, bytes]:
    """Return all files but the metadata, which has the time."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "metadata.json"
    }


def export_in_pages(
    url: str, form: str, out: str, on_progress: Callable[[ExportProgress], None] = lambda _: None
) -> None:
    """Export in pages of 7 steps."""
    own = FORMATS[form]
    choice = ExportSelection(columns=own.columns)
    with contextlib.closing(Source(url, RUN, 1, page_steps=7)) as source:
        Job(source=source, format=own, choice=choice, out=Path(out), on_progress=on_progress).run()


def rows_of(layers: Any) -> dict[tuple[int, str], Any]:
    """Return the L2 norms that pandas read, by step and layer."""
    return {
        (int(step), str(layer)): float(l2)
        for step, layer, l2 in zip(layers["step"], layers["layer"], layers["l2"], strict=True)
    }


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_pandas_and_polars_read_every_number(export: Callable[..., Any], form: str) -> None:
    """NaN and Inf are values, what was not measured is missing, and norms are float32."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    place = done(export(RUN, "--to", form, "--json"))
    if form == "parquet":
        layers, steps = (
            pandas.read_parquet(place / f"{one}.parquet") for one in ("layers", "steps")
        )
        other = polars.read_parquet(place / "steps.parquet")
    else:
        layers, steps = (pandas.read_csv(place / f"{one}.csv") for one in ("layers", "steps"))
        other = polars.read_csv(place / "steps.csv", infer_schema_length=None)

    assert place.name == f"sent-away-{form}"
    found = rows_of(layers)
    for step in range(STEPS):
        for at, name in enumerate(LAYERS):
            if (step, name) != (POISON_STEP, POISONED):
                assert found[step, name] == pytest.approx(norm_of(at, step), rel=6e-8)
    assert math.isnan(found[POISON_STEP, POISONED])
    assert found[INF_STEP, LAYERS[0]] == math.inf
    last = layers[layers["step"] == INF_STEP]
    assert last["linf"].isna().all()
    poisoned = layers[(layers["step"] == POISON_STEP) & (layers["layer"] == POISONED)]
    assert poisoned["nans"].tolist() == [3]
    assert set(layers["numel"]) == {10}
    assert steps["step"].tolist() == other["step"].to_list() == [*range(STEPS + 1)]
    assert other["loss"].to_list()[-1] == steps["loss"].tolist()[-1] == -math.inf
    assert math.isnan(other["norm"].to_list()[POISON_STEP])
    assert other["lr"].to_list()[-1] is None
    assert pandas.to_datetime(steps["time"]).dt.tz is not None


def test_the_alerts_are_those_of_the_aggregator(export: Callable[..., Any], fed: Any) -> None:
    pandas = pytest.importorskip("pandas")
    place = done(export(RUN, "--to", "parquet", "--json"))

    alerts = pandas.read_parquet(place / "alerts.parquet")

    known = {alert["id"]: alert for alert in fed.json(f"/runs/{RUN}/alerts")}
    assert set(alerts["id"]) == set(known)
    whole = json.loads(alerts[alerts["rule"] == "nonfinite"]["json"].iloc[0])
    assert whole["origin"]["layer"] == POISONED


def test_parquet_says_what_it_is(export: Callable[..., Any]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    place = done(export(RUN, "--to", "parquet", "--json"))

    schema = parquet.read_schema(place / "layers.parquet")

    inside = json.loads(schema.metadata[b"gradwatch"])
    beside = json.loads((place / "metadata.json").read_text())
    assert (inside["run"], inside["attempt"], inside["live"]) == (RUN, 1, False)
    assert inside["units"]["step_time_s"].startswith("seconds")
    assert inside.items() <= beside.items()
    assert [layer["name"] for layer in beside["layers"]] == [*LAYERS]
    assert beside["kept"] == [
        {"epoch": 0, "first_step": 0, "last_step": INF_STEP, "steps_per_row": 1}
    ]


def test_tensorboard_reads_scalars_and_alerts(export: Callable[..., Any]) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    place = done(export(RUN, "--to", "tensorboard", "--json"))

    own = accumulators.EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
    own.Reload()

    norms = own.Scalars(f"gradwatch/layer/{POISONED}/l2")
    assert [event.step for event in norms] == [*range(STEPS + 1)]
    assert math.isnan(norms[POISON_STEP].value)
    assert norms[0].wall_time > 1e9
    loss = own.Scalars("gradwatch/loss")
    assert (loss[0].value, loss[-1].value) == (3.0, -math.inf)
    (alert,) = own.Tensors("gradwatch/alerts/nonfinite/text_summary")[:1]
    assert alert.step == POISON_STEP
    assert POISONED.encode() in alert.tensor_proto.string_val[0]


def test_only_what_is_asked_for_is_written(export: Callable[..., Any]) -> None:
    """Steps, layers and columns; without layers there is no table of them."""
    pandas = pytest.importorskip("pandas")
    arguments = ("--from", "10", "--to-step", "12", "--layers", "*.h.0.*", "--column", "linf")
    place = done(export(RUN, "--to", "csv", "--json", *arguments))
    layers = pandas.read_csv(place / "layers.csv")

    assert layers.columns.tolist() == ["epoch", "step", "layer", "numel", "linf"]
    assert sorted(set(layers["layer"])) == ["transformer.h.0.attn.w", "transformer.h.0.mlp.w"]
    assert sorted(set(layers["step"])) == [10, 11, 12]
    assert len(pandas.read_csv(place / "alerts.csv")) == 0
    place = done(export(RUN, "--to", "csv", "--json", "--layers", "none", "--out", "less"))
    assert sorted(files_of(place)) == ["alerts.csv", "steps.csv"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["parquet", "csv", "tensorboard"])
def test_one_that_was_killed_is_written_anew(fed: Any, tmp_path: Path, form: str) -> None:
    kill = f"""
import os, signal
from tests.server.cli.commands.test_export import export_in_pages
def kill(progress):
    if progress.step >= 40:
        os.kill(os.getpid(), signal.SIGKILL)
export_in_pages({fed.url!r}, {form!r}, "again", kill)
"""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    killed = subprocess.run([sys.executable, "-c", kill], check=False, cwd=tmp_path, env=environ)
    assert killed.returncode == -signal.SIGKILL
    assert list((tmp_path / "again.part").iterdir())
    assert not (tmp_path / "again").exists()

    for out in ("again", "whole"):
        export_in_pages(fed.url, form, str(tmp_path / out))

    assert files_of(tmp_path / "again") == files_of(tmp_path / "whole")
    assert not (tmp_path / "again.part").exists()


def test_nothing_that_is_there_is_lost(export: Callable[..., Any], tmp_path: Path) -> None:
    done(export(RUN, "--to", "csv", "--out", "mine"))
    before = files_of(tmp_path / "mine")
    assert "mine is there already" in told(export(RUN, "--to", "csv", "--out", "mine"))
    assert files_of(tmp_path / "mine") == before


def test_of_two_exports_to_one_place_one_is_refused(fed: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "same")

    def begin_another(progress: ExportProgress) -> None:
        if progress.step < 10:
            with pytest.raises(GradwatchError, match="another export writes to"):
                export_in_pages(fed.url, "csv", out)

    export_in_pages(fed.url, "csv", out, begin_another)
    assert (tmp_path / "same" / "steps.csv").exists()


def test_what_cannot_be_is_said_in_one_line(
    export: Callable[..., Any], fed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run or an attempt that is not there, an aggregator that is not, a wrong option."""
    assert "no run 'nobody'" in told(export("nobody", "--to", "csv"))
    assert "no attempt 7" in told(export(RUN, "--to", "csv", "--attempt", "7"))
    assert "no closed step" in told(export(RUN, "--to", "csv", "--from", "1000"))
    assert "no layer of run" in told(export(RUN, "--to", "csv", "--layers", "nothing*"))
    for wrong in (("--to", "xls"), ("--to", "csv", "--column", "l3")):
        assert export(RUN, *wrong).exit_code == 2
    assert export(RUN, "--to", "csv", "--from", "9", "--to-step", "8").exit_code == 2
    for option in ("--from", "--to-step"):
        huge = export(RUN, "--to", "csv", option, str(1 << 53))
        assert (huge.exit_code, f"'{option}'" in huge.stderr) == (2, True)
    assert "run name 'we/ird' is not 1 to 128" in told(export("we/ird", "--to", "csv"))
    monkeypatch.setenv("GRADWATCH_URL", "http://127.0.0.1:1")
    assert "no aggregator answers" in told(export(RUN, "--to", "csv"))
    monkeypatch.setenv("GRADWATCH_URL", fed.url)
    assert "cannot make" in told(export(RUN, "--to", "csv", "--out", "/proc/nowhere/x"))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("form", sorted(FORMATS.keys() - {"csv"}))
def test_a_library_that_is_missing_is_named_with_its_extra(
    export: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    for name in ("pyarrow", "pyarrow.parquet", "tensorboardX", "tensorboardX.record_writer"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("GRADWATCH_URL", "http://127.0.0.1:1")

    assert f"pip install 'gradwatch[{form}]'" in told(export(RUN, "--to", form))
    assert list(Path().iterdir()) == []


def test_of_a_live_run_the_steps_that_were_closed_are_exported(
    export: Callable[..., Any], service: Aggregator
) -> None:
    peer = service.peer(run="alive").attach()
    for step in range(5):
        peer.send(stats_of(step, (1.0, 2.0)))
    peer.acked()
    service.shows(peer)

    result = export("alive", "--to", "csv")

    assert "the run is live" in result.stdout
    metadata = json.loads(Path("alive-csv/metadata.json").read_text())
    assert (metadata["live"], metadata["phase"]) == (True, "running")
    assert metadata["epochs"] == [[0, 0, 4]]


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_full_disk_leaves_nothing(fed: Any, tmp_path: Path, form: str) -> None:
    """A limit of the size of a file stands for the full disk."""

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000))

    command = ["export", RUN, "--to", form, "--url", fed.url, "--out", "full"]
    program = [sys.executable, "-m", "gradwatch_server", *command]
    result = subprocess.run(
        program, preexec_fn=limited, cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert result.returncode == 1, result.stderr
    (line,) = result.stderr.splitlines()
    assert "nothing was kept" in line
    assert "File too large" in line
    assert list(tmp_path.iterdir()) == []


def test_steps_that_are_kept_as_buckets_only_are_never_shown_as_single_ones(
    serve: Serve, tmp_path: Path
) -> None:
    """The table says over which steps each row is."""
    pandas = pytest.importorskip("pandas")
    served = serve()
    peer = served.peer(run="long").attach()
    for step in range(1_200):
        peer.send(stats_of(step, (float(step), math.nan if step == 100 else 1.0), loss=1.0))
    peer.send(Bye(reason="done"))
    peer.acked()
    served.health_of_ended("long")
    served.stop()
    _trim(served.directory)

    served.start()
    place = tmp_path / "long-csv"
    with contextlib.closing(Source(served.url, "long", 1, page_steps=64)) as source:
        Job(source=source, format=FORMATS["csv"], choice=ExportSelection(), out=place).run()

    kept = json.loads((place / "metadata.json").read_text())["kept"]
    assert [(own["first_step"], own["last_step"], own["steps_per_row"]) for own in kept] == [
        (0, 511, 16),
        (512, 1_199, 1),
    ]
    layers = pandas.read_csv(place / "layers.csv")
    assert layers["step"].tolist() == [step for step in range(512, 1_200) for _ in range(2)]
    buckets = pandas.read_csv(place / "layer_buckets.csv")
    assert (buckets["last_step"] - buckets["first_step"]).unique().tolist() == [15]
    row = buckets[(buckets["first_step"] == 96) & (buckets["layer"] == "a")].iloc[0]
    assert (row["min"], row["max"], row["n"], row["column"]) == (96.0, 111.0, 16, "l2")
    bad = buckets[(buckets["first_step"] == 96) & (buckets["layer"] == "b")].iloc[0]
    assert (bad["nan"], bad["max"]) == (1, 1.0)
    losses = pandas.read_csv(place / "step_buckets.csv").query("column == 'loss'")
    assert losses["n"].sum() == 512


def _trim(directory: Path) -> None:
    """Delete the single steps that buckets stand for, half of them, as a full disk would."""
    store = SQLiteStore.open(directory, Clock())
    try:
        assert store.curves.trim("long", 1, 0, 8) > 0
    finally:
        store.close()


def test_an_aggregator_that_is_gone_meanwhile_is_told_in_one_line(
    serve: Serve, tmp_path: Path
) -> None:
    served = serve()
    peer = served.peer(run=RUN).attach(LAYERS)
    more(peer, range(30))
    served.shows(peer)

    with pytest.raises(IncompleteExportError, match=r"nothing was kept: no aggregator answers"):
        export_in_pages(served.url, "csv", str(tmp_path / "gone"), lambda _: served.close())
    assert list(tmp_path.glob("gone*")) == []


@pytest.mark.parametrize(("out", "code"), [("", 2), (".", 2), ("/", 2), ("x" * 300, 1)])
def test_a_place_that_cannot_be_made_is_one_line(
    export: Callable[..., Any], out: str, code: int
) -> None:
    """A name that is none, or too long."""
    done = export(RUN, "--to", "csv", "--out", out)

    assert done.exit_code == code
    assert code == 2 or "File name too long" in told(done)
