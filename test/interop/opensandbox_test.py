"""OpenSandbox's Python client against the bundled service and execd: what was
written for another service works unchanged."""

import asyncio
import io
import json
import logging
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest
from datetime import timedelta
from urllib.parse import urlparse

from opensandbox import Sandbox, SandboxManagerSync, SandboxSync
from opensandbox.config import ConnectionConfig
from opensandbox.config.connection_sync import ConnectionConfigSync
from opensandbox.exceptions import SandboxApiException, SandboxException
from opensandbox.models.execd import ExecutionHandlers, RunCommandOpts
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)
from opensandbox.models.isolated import CreateIsolatedSessionRequest, IsolatedOverlaySpec, IsolatedWorkspaceSpec
from opensandbox.models.sandboxes import (
    CredentialProxyConfig,
    Host,
    LifecycleHook,
    NetworkPolicy,
    SandboxFilter,
    SandboxImageAuth,
    SandboxImageSpec,
    SandboxLifecycle,
    SnapshotFilter,
    Volume,
)
from opensandbox.models.templates import TemplateFilter
from opensandbox.sync.services import CommandsSync, FilesystemSync, IsolationServiceSync, IsolationSessionSync

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = ROOT / "bin"
PATIENCE = 30  # seconds until something that must happen counts as missing

logging.disable()  # the client logs what these tests expect to be refused


def until(what, try_it):
    """Gives the first true answer of try_it."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := try_it()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)
    return answer


class Service:
    """The bundled lifecycle service on a temporary state directory."""

    def __init__(self):
        self.state = pathlib.Path(tempfile.mkdtemp(prefix="astrabox-interop-"))
        self.process = subprocess.Popen([BIN / "astrabox", "sandboxd", "--state-dir", self.state], stdin=subprocess.DEVNULL)
        try:
            url = urlparse(until("the service listens", self.listening)["url"])
        except BaseException:
            self.process.kill()
            self.stop()
            raise
        key = (self.state / "sandboxd/key").read_text().strip()
        self.connection = {"api_key": key, "domain": url.netloc, "protocol": url.scheme}

    def listening(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the service ended with {self.process.returncode}")
        try:
            return json.loads((self.state / "sandboxd/listen.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def stop(self):
        self.process.terminate()
        status = self.process.wait(PATIENCE)
        shutil.rmtree(self.state, ignore_errors=True)
        if status != 0:
            raise RuntimeError(f"the service ended with {status}")


def setUpModule():
    global service, config, box
    service = Service()
    unittest.addModuleCleanup(service.stop)
    config = ConnectionConfigSync(**service.connection)
    box = SandboxSync.create(
        "astrabox:host",
        connection_config=config,
        timeout=timedelta(minutes=10),
        metadata={"team": "python"},
        resource={"cpu": "1", "memory": "512Mi"},
    )
    unittest.addModuleCleanup(lambda: box and box.destroy())


def stdout(execution):
    return "\n".join(m.text for m in execution.logs.stdout)


def stderr(execution):
    return "\n".join(m.text for m in execution.logs.stderr)


def run(command, **options):
    return box.commands.run(command, opts=RunCommandOpts(**options))


class Lifecycle(unittest.TestCase):
    def test_describes_and_renews(self):
        before = box.get_info()
        self.assertEqual(before.status.state, "Running")
        self.assertEqual(before.metadata, {"team": "python"})
        after = box.renew(timedelta(minutes=30)).expires_at
        self.assertGreater(after, before.expires_at)
        self.assertEqual(box.get_info().expires_at, after)

    def test_lists(self):
        with SandboxManagerSync.create(config) as manager:
            found = manager.list_sandbox_infos(SandboxFilter(states=["Running"], metadata={"team": "python"}, page_size=1))
            self.assertEqual([s.id for s in found.sandbox_infos], [box.id])
            self.assertEqual(manager.list_sandbox_infos(SandboxFilter(metadata={"team": "no"})).sandbox_infos, [])

    def test_patches_metadata(self):
        self.assertEqual(box.patch_metadata({"color": "blue"}).metadata, {"team": "python", "color": "blue"})
        self.assertEqual(box.patch_metadata({"color": None}).metadata, {"team": "python"})

    def test_is_healthy_and_measured(self):
        self.assertTrue(box.is_healthy())
        measured = box.get_metrics()
        self.assertGreater(measured.cpu_count, 0)
        self.assertGreater(measured.memory_total_in_mib, 0)

    def test_gives_endpoints(self):
        self.assertTrue(box.get_endpoint(8080).endpoint.endswith("/proxy/8080"))

    def test_pauses_and_resumes(self):
        global box
        run("echo kept > /root/kept")
        box.commands.set_env("ALSO_KEPT", "yes")
        box.pause()
        until("it is paused", lambda: box.get_info().status.state == "Paused")
        box = SandboxSync.resume(box.id, connection_config=config)
        self.assertEqual(stdout(run('cat /root/kept; echo "$ALSO_KEPT"')), "kept\nyes")

    def test_destroys(self):
        other = SandboxSync.create("astrabox:host", connection_config=config, timeout=None)
        self.assertIsNone(other.get_info().expires_at)
        other.kill()
        with self.assertRaises(SandboxApiException) as refused:
            other.get_info()
        self.assertEqual((refused.exception.status_code, refused.exception.error.code), (404, "SANDBOX_NOT_FOUND"))


class Commands(unittest.TestCase):
    def test_runs(self):
        e = run('echo out; echo err >&2; printf "%s %s" "$PWD" "$X"; exit 3', working_directory="/usr", envs={"X": "y"})
        self.assertEqual((stdout(e), stderr(e), e.exit_code), ("out\n/usr y", "err", 3))

    def test_runs_arguments(self):
        self.assertEqual(stdout(run(["printf", "%s|", "a b", "$HOME"])), "a b|$HOME|")

    def test_runs_as_another_account(self):
        self.assertEqual(stdout(run('echo "$(id -un) $HOME"', uid=1000)), "agent /home/agent")

    def test_tells_of_a_timeout(self):
        e = run("sleep 60", timeout=timedelta(milliseconds=200))
        self.assertEqual(e.error.value, "-1")
        self.assertIn("timeout after 200ms", e.error.traceback)

    def test_keeps_the_log_of_the_background(self):
        e = run("echo one; echo two", background=True)
        until("it ends", lambda: not box.commands.get_command_status(e.id).running)
        self.assertEqual(box.commands.get_command_status(e.id).exit_code, 0)
        log = box.commands.get_background_command_logs(e.id, 0)
        self.assertEqual((log.content, log.cursor), ("one\ntwo\n", 8))

    def test_interrupts(self):
        e = run("exec sleep 60", background=True)
        box.commands.interrupt(e.id)
        self.assertFalse(box.commands.get_command_status(e.id).running)

    def test_keeps_sessions(self):
        session = box.commands.create_session(working_directory="/tmp")
        box.commands.run_in_session(session, "export KEPT='a b'; cd /usr")
        self.assertEqual(stdout(box.commands.run_in_session(session, 'echo "$KEPT $PWD"')), "a b /usr")
        box.commands.delete_session(session)

    def test_sets_variables_for_later(self):
        odd = {"PLAIN": "1", "LINES": " a\n\n$HOME \\n\t", "QUOTES": "it's\n\"so\" \\t"}
        for name, value in odd.items():
            box.commands.set_env(name, "before")
            box.commands.set_env(name, value)
        show = 'printf "%s|" "$PLAIN" "$LINES" "$QUOTES" | base64 -w0'
        want = subprocess.run(["base64", "-w0"], input="".join(v + "|" for v in odd.values()), text=True, capture_output=True, check=True).stdout
        session = box.commands.create_session()
        self.assertEqual(stdout(run(show)), want)
        self.assertEqual(stdout(run(show, uid=1000)), want)
        self.assertEqual(stdout(box.commands.run_in_session(session, show)), want)
        self.assertEqual(stdout(run('echo "$PLAIN"', envs={"PLAIN": "2"})), "2")
        with self.assertRaises(SandboxException):
            box.commands.set_env("NO-NAME", "x")
        # Another account can't decide what root's programs see.
        self.assertNotEqual(run('echo "EVIL=1" >> "$EXECD_ENVS"', uid=1000).exit_code, 0)

    def test_streams_to_async_handlers(self):
        async def go():
            seen = []

            async def heard(message):
                seen.append(message.text)

            connected = await Sandbox.connect(box.id, connection_config=ConnectionConfig(**service.connection))
            try:
                await connected.commands.run("for i in 1 2 3; do echo $i; done", handlers=ExecutionHandlers(on_stdout=heard))
            finally:
                await connected.close()
            return seen

        self.assertEqual(asyncio.run(go()), ["1", "2", "3"])


class Files(unittest.TestCase):
    def setUp(self):
        self.dir = f"/tmp/{self.id()} $1"
        box.files.create_directories([WriteEntry(path=self.dir, mode=755)])
        self.addCleanup(box.files.delete_directories, [self.dir])

    def test_writes_and_reads(self):
        path = f"{self.dir}/ü $x.txt"
        box.files.write_file(path, "héllo\n", mode=640)
        self.assertEqual(box.files.read_file(path), "héllo\n")
        info = box.files.get_file_info([path])[path]
        self.assertEqual((info.mode, info.size, info.owner), (640, 7, "root"))

    def test_streams(self):
        content = b"0123456789" * 100_000
        box.files.write_file(f"{self.dir}/large", io.BytesIO(content))
        self.assertEqual(box.files.read_bytes(f"{self.dir}/large", range_header="bytes=3-5"), b"345")
        self.assertEqual(b"".join(box.files.read_bytes_stream(f"{self.dir}/large")), content)

    def test_changes(self):
        files = box.files
        one, two, moved = f"{self.dir}/one.txt", f"{self.dir}/sub/two.txt", f"{self.dir}/moved.txt"
        files.write_files([WriteEntry(path=one, data="aXbX", mode=644), WriteEntry(path=two, data=b"\x00\x01", mode=600)])
        listed = files.list_directory(DirectoryListEntry(path=self.dir, depth=3))
        self.assertEqual({e.path for e in listed}, {one, two, f"{self.dir}/sub"})
        files.move_files([MoveEntry(src=one, dest=moved)])
        replaced = files.replace_contents_detailed([ContentReplaceEntry(path=moved, old_content="X", new_content="--")])
        self.assertEqual([r.replaced_count for r in replaced], [2])
        self.assertEqual(files.read_file(moved), "a--b--")
        files.set_permissions([SetPermissionEntry(path=moved, mode=4755, owner="agent", group="agent")])
        info = files.get_file_info([moved])[moved]
        self.assertEqual((info.mode, info.owner, info.group), (4755, "agent", "agent"))
        self.assertEqual({e.path for e in files.search(SearchEntry(path=self.dir, pattern="*.txt"))}, {moved, two})
        files.delete_files([moved])
        with self.assertRaises(SandboxException):
            files.read_file(moved)

    def test_acts_as_an_account(self):
        agent = box.files_with_identity(1000, 1000)
        agent.write_files([WriteEntry(path="/workspace/agents", data="mine", mode=600)])
        info = agent.get_file_info(["/workspace/agents"])["/workspace/agents"]
        self.assertEqual((info.owner, info.group, info.mode), ("agent", "agent", 600))
        with self.assertRaises(SandboxException):
            agent.write_file(f"{self.dir}/x", "x")
        with self.assertRaises(SandboxException):
            box.files_with_identity(1234, 1234).read_file("/workspace/agents")
        self.assertEqual(agent.read_file("/workspace/agents"), "mine")
        agent.delete_files(["/workspace/agents"])


class Isolation(unittest.TestCase):
    def test_isolates_a_session(self):
        self.assertTrue(box.isolation.capabilities().available)
        box.files.create_directories([WriteEntry(path="/root/isolated", mode=700)])
        request = CreateIsolatedSessionRequest(workspace=IsolatedWorkspaceSpec(path="/root/isolated", mode="rw"))
        with box.isolation.session(request) as session:
            session.run("export KEPT=yes; echo inside > file")
            self.assertEqual(stdout(session.run('echo "$KEPT"; cat file; touch /usr/outside || echo refused')).splitlines()[-1], "refused")
            background = session.run_background("echo back; exit 3")
            until("it ends", lambda: not session.run_status(background.run_id).running)
            self.assertEqual(session.run_status(background.run_id).exit_code, 3)
            self.assertEqual(session.run_logs(background.run_id).text, "back\n")
            replaced = session.files.replace_contents_detailed([ContentReplaceEntry(path="file", old_content="in", new_content="out")])
            self.assertEqual([r.replaced_count for r in replaced], [1])
            self.assertEqual(box.isolation.attach(session.session_id).files.read_file("file"), "outside\n")
            self.assertEqual((session.get().status, session.info.workspace.path), ("active", "/root/isolated"))
        self.assertEqual(stdout(box.isolation.run_once("cat file", workspace="/root/isolated")), "outside")
        self.assertEqual(box.isolation.list(), [])

    def test_refuses_what_it_lacks(self):
        for lacking in (
            {"workspace": IsolatedWorkspaceSpec(path="/root", mode="overlay")},
            {"workspace": IsolatedWorkspaceSpec(path="/root"), "overlays": [IsolatedOverlaySpec(path="/usr")]},
        ):
            with self.assertRaises(SandboxApiException) as refused:
                box.isolation.create(CreateIsolatedSessionRequest(**lacking))
            self.assertEqual((refused.exception.status_code, refused.exception.error.code), (503, "NOT_SUPPORTED"))


class Refusals(unittest.TestCase):
    """What docs/reference/clients.md says that isn't offered."""

    def refused(self, status, code, call):
        with self.assertRaises(SandboxApiException) as refusal:
            call()
        self.assertEqual(refusal.exception.status_code, status)
        self.assertIn(code, str(refusal.exception))  # 501 is none of the statuses whose bodies the client reads

    def test_refuses_what_it_lacks(self):
        def create(image="astrabox:host", **options):
            return lambda: SandboxSync.create(image, connection_config=config, **options)

        manager = SandboxManagerSync.create(config)
        self.addCleanup(manager.close)
        for status, code, call in (
            (501, "NETWORK_POLICY_NOT_SUPPORTED", create(network_policy=NetworkPolicy(default_action="allow"))),
            (501, "SNAPSHOTS_NOT_SUPPORTED", create(image=None, snapshot_id="s")),
            (501, "VOLUMES_NOT_SUPPORTED", create(volumes=[Volume(name="v", host=Host(path="/tmp"), mount_path="/mnt")])),
            (501, "CREDENTIAL_PROXY_NOT_SUPPORTED", create(credential_proxy=CredentialProxyConfig(enabled=True))),
            (501, "LIFECYCLE_HOOKS_NOT_SUPPORTED", create(lifecycle=SandboxLifecycle(pre_start=LifecycleHook(command=["true"])))),
            (501, "REGISTRY_AUTH_NOT_SUPPORTED", create(SandboxImageSpec(image="x", auth=SandboxImageAuth(username="u", password="p")))),
            (501, "POOLS_NOT_SUPPORTED", create(extensions={"poolRef": "p"})),
            (400, "IMAGE_UNKNOWN", create("python:3.11")),
            (400, "INVALID_REQUEST", create(timeout=timedelta(seconds=59))),
            (400, "INVALID_REQUEST", create(metadata={"a b": ""})),
            (400, "INVALID_REQUEST", create(entrypoint=["/no/such/program"])),
            (501, "TEMPLATES_NOT_SUPPORTED", lambda: SandboxSync.create_from_template("t", timeout=timedelta(minutes=5), connection_config=config)),
            (501, "SIGNED_ENDPOINTS_NOT_SUPPORTED", lambda: box.get_signed_endpoint(80, int(time.time()) + 60)),
            (501, "NOT_IMPLEMENTED", box.create_snapshot),
            (501, "NOT_IMPLEMENTED", lambda: box.get_diagnostic_logs("all")),
            (501, "NOT_IMPLEMENTED", lambda: manager.list_snapshots(SnapshotFilter())),
            (501, "NOT_IMPLEMENTED", lambda: manager.list_templates(TemplateFilter())),
            (400, "INVALID_REQUEST", lambda: box.renew(timedelta(seconds=1))),
        ):
            with self.subTest(code):
                self.refused(status, code, call)

    def test_the_page_names_every_method(self):
        page = (ROOT / "docs/reference/clients.md").read_text()
        for kind in (SandboxSync, SandboxManagerSync, CommandsSync, FilesystemSync, IsolationServiceSync, IsolationSessionSync):
            for name in vars(kind):
                if not name.startswith("_") and name != "session_id":
                    self.assertIn(f"`{name}`", page, f"of {kind.__name__}")


if __name__ == "__main__":
    unittest.main()
