"""The evidence store: what is written is read, and everything that can go wrong has its own words."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from emmy.errors import StoreError
from emmy.extract import schema
from emmy.extract.records import (
    Failure,
    KernelRecord,
    Measurement,
    PlanMeasurement,
    Regime,
    Routing,
    Run,
    plan_key,
)
from emmy.extract.store import Store, default_path

duckdb = pytest.importorskip("duckdb")

HERE = Regime("H200", 90, "nvrtc 13.0", "", "cold")
ROOT = Path(__file__).parents[2]


def measurement(body="b1", row="WORK=t256", median=1e-5, regime=HERE, **more):
    return Measurement(body, (), "map", row, regime, 20, median, median * 0.99, median * 1.01, **more)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "evidence.duckdb"


def child(code: str, *args: object, **options):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def measured(store):
    return list(store.snapshot(["b1"], HERE).measured("b1"))


def test_what_is_recorded_is_read_back(path):
    store = Store(path)
    first = Measurement(
        "b1", (("s", 512),), "row", "WORK=t128", HERE, 30, 2e-5, 1.9e-5, 2.2e-5, 1.9e9, 1.8e9, "own", 5.0
    )
    second = measurement("b2", when=6.0)
    store.record_measurements([first, second])
    assert measured(store) == [first]
    assert store.measurements() == [first, second]
    failure = Failure("b1", "WORK=t1024", "compile", "too many registers", "sm_90a", (("s", 7),), 3.0)
    store.record_failures([failure])
    kernel = KernelRecord("b1", "(body [] )", "k_rms", {"folds": 1, "dtype": "bf16"})
    store.record_kernels([kernel])
    store.record_kernels([kernel])
    assert store.kernels() == [kernel]
    plan = PlanMeasurement(plan_key([("b1", "map", "r")]), (), HERE, 10, 5e-5, 4e-5, 6e-5)
    store.record_plans([plan])
    store.record_routing([Routing("p", ("b1", "b2"), 1e-4, "optimal")])
    store.record_run(Run("r1", "tune", "box", "0.1", 1.0))
    snapshot = store.snapshot(["b1", "b2"], HERE, [plan.plan])
    assert snapshot.measured("b2") == [second]
    assert snapshot.failed("b1") == [failure]
    assert snapshot.plans == {plan.plan: [plan]}
    rows = {"kernel": 1, "measurement": 2, "plan_measurement": 1, "failure": 1, "routing": 1, "run": 1}
    assert store.stats().rows == rows
    assert store.stats().version == schema.VERSION


def test_other_cards_numerics_and_l2_are_not_evidence_but_other_compilers_are_kept(path):
    store = Store(path)
    foreign = [Regime("A100", 80, HERE.compiler), Regime("H200", 90, HERE.compiler, "fast"),
               Regime("H200", 90, HERE.compiler, "", "warm")]  # fmt: skip
    aged = Regime("H200", 90, "nvrtc 12.8")
    store.record_measurements([measurement(regime=r) for r in (*foreign, aged, HERE)])
    assert {m.regime for m in measured(store)} == {aged, HERE}


def test_delete_takes_only_what_matches(path):
    store = Store(path)
    store.record_measurements([measurement(row="x"), measurement(row="y"), measurement("b2", "x", source="golden")])
    assert store.delete(body="b1", row="x") == 1
    assert store.delete(source="golden") == 1
    assert [m.row for m in store.measurements()] == ["y"]
    with pytest.raises(StoreError, match="something to match"):
        store.delete()


def test_missing_file_is_an_empty_store_and_reading_makes_none(path):
    store = Store(path)
    assert measured(store) == []
    assert store.version() == 0
    assert store.stats().rows["measurement"] == 0
    assert isinstance(Store.open_for_compile(path), Store)
    assert not path.exists()


def test_older_schema_is_read_as_it_is_and_migrated_by_the_first_write(path):
    with duckdb.connect(str(path)) as connection:
        connection.execute(schema.VERSION_TABLE)
        connection.execute(schema.STEPS[0])
        connection.execute("INSERT INTO emmy_schema VALUES (1)")
        connection.execute("INSERT INTO failure VALUES ('b1', 'r', 'compile', 'why', '', '{}', 1.0)")
    store = Store(path)
    assert store.version() == 1
    assert len(store.snapshot(["b1"], HERE, ["p"]).failed("b1")) == 1
    assert store.stats().rows["routing"] == 0
    store.record_routing([Routing("p", ("b1",), 1e-4, "optimal")])
    assert store.version() == schema.VERSION
    assert len(store.snapshot(["b1"], HERE).failed("b1")) == 1


def test_newer_schema_is_an_error_and_a_compile_reports_the_lost_tier(path):
    Store(path).record_measurements([measurement()])
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE emmy_schema SET version = 99")
    for action in (lambda: measured(Store(path)), lambda: Store(path).record_measurements([measurement()])):
        with pytest.raises(StoreError, match="schema 99"):
            action()
    reason = Store.open_for_compile(path)
    assert isinstance(reason, str) and reason.startswith("lost tier: measured") and "99" in reason


def test_damaged_file_is_an_error_and_a_compile_goes_on(path):
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="damaged"):
        Store(path).record_measurements([measurement()])
    assert "damaged" in Store.open_for_compile(path)


def test_file_of_another_program_is_an_error_and_is_left_alone(path):
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE mine (x INTEGER)")
    for action in (lambda: Store(path).measurements(), lambda: Store(path).record_measurements([measurement()])):
        with pytest.raises(StoreError, match="no evidence store"):
            action()
    with duckdb.connect(str(path)) as connection:
        assert connection.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [("mine",)]


@pytest.mark.parametrize("kind", ["folder", "empty"])
def test_folder_or_empty_file_in_its_place_is_an_error(path, kind):
    path.mkdir() if kind == "folder" else path.touch()
    for action in (lambda: Store(path).measurements(), lambda: Store(path).record_measurements([measurement()])):
        with pytest.raises(StoreError, match="folder" if kind == "folder" else "damaged"):
            action()
    assert isinstance(Store.open_for_compile(path), str)


def test_truncated_file_is_an_error(path):
    Store(path).record_measurements([measurement(row=f"r{i}") for i in range(500)])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with pytest.raises(StoreError, match="damaged"):
        Store(path).measurements()


def test_missing_directory_is_an_error_where_it_was_named(tmp_path):
    store = Store(tmp_path / "nowhere" / "evidence.duckdb")
    with pytest.raises(StoreError, match="does not exist"):
        store.record_measurements([measurement()])
    assert "does not exist" in Store.open_for_compile(tmp_path / "nowhere" / "e.duckdb")


def test_default_directory_is_made(tmp_path, monkeypatch):
    monkeypatch.delenv("EMMY_TUNE_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    store = Store()
    store.record_measurements([measurement()])
    assert store.path.is_relative_to(tmp_path) and store.path.exists()
    assert default_path({"EMMY_TUNE_DB": "/x/y.duckdb"}) == Path("/x/y.duckdb")


READ_ONLY = """
import os, sys
import duckdb, filelock
from emmy.errors import StoreError
from emmy.extract.records import Failure, Regime
from emmy.extract.store import Store
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
here = Regime("H200", 90, "nvrtc 13.0")
print(len(Store(sys.argv[1]).snapshot(["b1"], here).measured("b1")))
try:
    Store(sys.argv[1]).record_failures([Failure("b", "r", "compile", "why")])
except StoreError as error:
    print(error.what)
"""


@pytest.mark.parametrize("mode", [0o555, 0o777])
def test_read_only_file_is_read_and_not_written(mode):
    # root may write everything, so the child becomes nobody; its folder must be reachable for nobody
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "evidence.duckdb"
        Store(path).record_measurements([measurement()])
        Path(f"{path}.lock").unlink(missing_ok=True)
        path.chmod(0o444)
        folder.chmod(mode)
        out, err = child(READ_ONLY, path).communicate(timeout=60)
        folder.chmod(0o755)
    lines = out.splitlines()
    assert lines[:1] == ["1"], err
    assert "read-only" in lines[1]


HOLD = """
import sys, time, filelock
with filelock.FileLock(sys.argv[1] + ".lock"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_lock_held_by_another_process_is_an_error_after_the_wait(path):
    Store(path).record_measurements([measurement()])
    process = child(HOLD, path)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="held by another process"):
            Store(path, lock_seconds=0.2).record_measurements([measurement()])
        assert "held by another" in Store.open_for_compile(path, lock_seconds=0.2)
    finally:
        process.kill()
        process.communicate()
    assert len(Store(path).measurements()) == 1


OPEN_BY_DUCKDB = """
import sys, time, duckdb
connection = duckdb.connect(sys.argv[1])
print("open", flush=True)
time.sleep(60)
"""


def test_file_open_in_the_duckdb_shell_is_an_error_after_the_wait(path):
    Store(path).record_measurements([measurement()])
    process = child(OPEN_BY_DUCKDB, path)
    try:
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match="held by another process"):
            Store(path, lock_seconds=0.2).measurements()
    finally:
        process.kill()
        process.communicate()


WRITER = """
import sys
from emmy.extract.records import Measurement, Regime
from emmy.extract.store import Store
here, store = Regime("H200", 90, "nvrtc 13.0"), Store(sys.argv[1], lock_seconds=60)
for batch in range(int(sys.argv[3])):
    rows = [Measurement(f"{sys.argv[2]}-{batch}", (), "map", f"r{i}", here, 9, 1.0, 1.0, 1.0) for i in range(20)]
    store.record_measurements(rows)
    print(batch, flush=True)
"""


def test_two_writers_at_once_lose_nothing(path):
    writers = [child(WRITER, path, name, 8) for name in ("a", "b")]
    for writer in writers:
        _, err = writer.communicate(timeout=120)
        assert writer.returncode == 0, err
    assert len(Store(path).measurements()) == 2 * 8 * 20


KILLS = """
import os, random, signal, sys, time
import duckdb, filelock  # imported before the forks; no connection is ever made in this process
from emmy.extract.records import Measurement, Regime
from emmy.extract.store import Store

path, seed, kills = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
here, rng = Regime("H200", 90, "nvrtc 13.0"), random.Random(seed)
acknowledged = 0


def rows(batch):
    return [Measurement(f"b{batch}", (), "map", f"r{i}", here, 9, 1.0, 1.0, 1.0) for i in range(20)]


def counts():
    found = {}
    for m in Store(path, lock_seconds=60).measurements():
        found[m.body] = found.get(m.body, 0) + 1
    return found


def forked(work):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            work(write)
        finally:
            os._exit(0)
    os.close(write)
    return pid, read


def writer(pipe):
    for batch in range(10_000):
        Store(path, lock_seconds=60).record_measurements(rows(f"{kill}-{batch}"))
        os.write(pipe, b"x")


def checker(pipe):
    try:
        found = counts()
        text = f"{len(found)} {set(found.values()) <= {20}}"
    except Exception as error:
        text = f"-1 {type(error).__name__}:{error}"
    os.write(pipe, text.encode())


for kill in range(kills):
    if kill % 5 == 4:  # also while the file is made
        for name in (path, path + ".wal"):
            if os.path.exists(name):
                os.remove(name)
        acknowledged = 0
    pid, pipe = forked(writer)
    time.sleep(rng.uniform(0.0, 0.15))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while chunk := os.read(pipe, 4096):
        acknowledged += len(chunk)
    os.close(pipe)
    pid, pipe = forked(checker)
    os.waitpid(pid, 0)
    batches, whole = os.read(pipe, 4096).decode().split(" ", 1)
    os.close(pipe)
    lost = int(batches) - acknowledged
    if whole != "True" or lost not in (0, 1):
        print(f"kill {kill}: {batches} batches, {acknowledged} acknowledged, {whole}")
        sys.exit(1)
    acknowledged = int(batches)
print(f"kept {acknowledged}")
"""


@pytest.mark.slow
def test_fifty_killed_writers_lose_at_most_the_batch_in_flight(path):
    seed = random.SystemRandom().randrange(1 << 30)
    out, err = child(KILLS, path, seed, 50).communicate(timeout=300)
    assert out.startswith("kept "), f"seed {seed}: {out}{err}"
    Store(path).record_measurements([measurement("after")])
    assert len(Store(path).snapshot(["after"], HERE).measured("after")) == 1


READER = """
import sys
from emmy.extract.records import Regime
from emmy.extract.store import Store
here, last = Regime("H200", 90, "nvrtc 13.0"), 0
for _ in range(int(sys.argv[2])):
    found = len(Store(sys.argv[1], lock_seconds=60).measurements())
    assert found % 20 == 0 and found >= last, (found, last)
    last = found
print(last)
"""


def test_readers_beside_a_writer_see_whole_batches_and_never_fewer(path):
    readers = [child(READER, path, 15) for _ in range(3)]
    writer = child(WRITER, path, "w", 15)
    for process in (*readers, writer):
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert len(Store(path).measurements()) == 15 * 20


FULL = """
import resource, signal, sys
from emmy.errors import StoreError
from emmy.extract.records import Failure
from emmy.extract.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(sys.argv[1])
store.record_failures([Failure("b", "first", "compile", "why")])
import os
limit = os.path.getsize(sys.argv[1]) + 100_000
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    many = [Failure("b", f"{i}-{i * 7919 % 1000003}", "compile", f"{i * 104729}" * 30) for i in range(30000)]
    store.record_failures(many)
except StoreError as error:
    print(error)
"""


def test_full_disk_is_an_error_and_keeps_what_was_there(path):
    process = child(FULL, path)
    out, err = process.communicate(timeout=300)
    assert "cannot grow" in out, (out, err)
    assert [f.row for f in Store(path).snapshot(["b"], HERE).failed("b")] == ["first"]


def test_row_edited_by_hand_is_an_error(path):
    Store(path).record_measurements([measurement()])
    for text in ("no json", "[1]", '{"s": null}'):
        with duckdb.connect(str(path)) as connection:
            connection.execute("UPDATE measurement SET sizes = ?", [text])
        with pytest.raises(StoreError, match="sizes that are not ours"):
            measured(Store(path))


def test_a_link_to_a_store_stays_one(tmp_path, path):
    link = tmp_path / "link.duckdb"
    link.symlink_to(path)
    Store(link).record_measurements([measurement()] * 2)
    Store(link).vacuum()
    assert link.is_symlink() and len(Store(path).measurements()) == 1
    assert not list(tmp_path.glob("link.duckdb.lock")), "two names of one file have one lock"


def test_a_name_that_no_file_can_have_loses_the_tier_and_not_the_compile(tmp_path):
    for odd in (tmp_path / ("a" * 300), loop(tmp_path / "loop")):
        with pytest.raises(StoreError, match="cannot be reached"):
            Store(odd).record_measurements([measurement()])
        assert "lost tier: measured" in str(Store.open_for_compile(odd))


def loop(path):
    path.symlink_to(path.name)
    return path


@pytest.mark.parametrize("change", [
    "ALTER TABLE measurement ADD COLUMN more INTEGER DEFAULT 3",
    "ALTER TABLE measurement ALTER median TYPE TEXT",
    "DROP TABLE measurement",
    "ALTER TABLE kernel RENAME features TO other",
    "UPDATE emmy_schema SET version = -5",
    "ALTER TABLE emmy_schema ALTER version TYPE TEXT; UPDATE emmy_schema SET version = 'abc'",
])  # fmt: skip
def test_a_store_whose_tables_were_changed_by_hand_is_named(path, change):
    Store(path).record_measurements([measurement()])
    with duckdb.connect(str(path)) as connection:
        connection.execute(change)
    assert "lost tier: measured" in str(Store.open_for_compile(path))
    for use in (Store(path).measurements, Store(path).tables, Store(path).vacuum, Store(path).stats):
        with pytest.raises(StoreError, match=r"changed by hand|no evidence store"):
            use()
    assert not list(path.parent.glob(".*.new"))


@pytest.mark.parametrize("text", ["nope", "[]", "5"])
def test_features_that_are_not_ours_are_named(path, text):
    Store(path).record_kernels([KernelRecord("b1", "(body)", "k", {})])
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE kernel SET features = ?", [text])
    with pytest.raises(StoreError, match="features"):
        Store(path).kernels()
    with pytest.raises(StoreError, match="features"):
        Store(path).record_kernels([KernelRecord("b1", "(body)", "k", {})])


def test_an_interrupt_while_duckdb_works_is_one(path):
    store = Store(path)
    store.record_measurements([measurement()])
    former = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            store.database.read(lambda c: c.execute("SELECT sum(hash(range)) FROM range(100000000000)").fetchall(), [])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert len(store.measurements()) == 1
