"""Software that nobody here wrote, JIT-built through nodecache without changing a line of it."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from tests.testbed.processes import Running, parent, run, until
from tests.torch_packages import REPOSITORY, HeldCompiler, installed_packages

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

WITH_NODECACHE = ["-m", "nodecache", "run"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
BUILD_SECONDS = 420
STUCK_SECONDS = 20

ADAM = """\
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam

torch.manual_seed(1)
mine = torch.nn.Parameter(torch.randn(4099))
theirs = torch.nn.Parameter(mine.detach().clone())
ours, reference = DeepSpeedCPUAdam([mine], lr=1e-2, adamw_mode=False), torch.optim.Adam([theirs], lr=1e-2)
for _ in range(5):
    mine.grad = torch.randn(4099)
    theirs.grad = mine.grad.clone()
    ours.step()
    reference.step()
torch.testing.assert_close(mine, theirs)
print("agrees with torch's Adam")
"""
QTORCH = """\
import torch
from qtorch.quant import fixed_point_quantize

rounded = fixed_point_quantize(torch.tensor([0.3, -0.6, 9.0]), wl=4, fl=2, rounding="nearest")
print(rounded.tolist())
"""
BREVITAS = """\
import brevitas, torch

assert brevitas.NATIVE_STE_BACKEND_LOADED
x = torch.tensor([0.4, 1.6], requires_grad=True)
rounded = torch.ops.autograd_ste_ops.round_ste_impl(x)
rounded.sum().backward()
print(rounded.tolist(), x.grad.tolist())
"""
LOAD_EXAMPLE = """\
from torch.utils.cpp_extension import load
module = load(
    name='extension',
    sources=['extension.cpp'],
    extra_cflags=['-O2'],
    verbose=True)
import torch
print(module.halve(torch.ones(2)).tolist())
"""
EXTENSION = """\
#include <torch/extension.h>
torch::Tensor halve(torch::Tensor x) { return x / 2; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("halve", &halve); }
"""
INLINE_EXAMPLE = '''\
from torch.utils.cpp_extension import load_inline
source = """
at::Tensor cos_add(at::Tensor x, at::Tensor y) {
  return x.cos() + y.cos();
}
"""
module = load_inline(name='inline_extension',
                     cpp_sources=[source],
                     functions=['cos_add'])
import torch
print(module.cos_add(torch.zeros(2), torch.zeros(2)).tolist())
'''


@pytest.fixture(scope="module")
def packages():
    return installed_packages()


@pytest.fixture
def compiler(tmp_path):
    return HeldCompiler(tmp_path)


@pytest.fixture
def env(tmp_path, compiler):
    return {
        "CXX": str(compiler.path),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # DeepSpeed asks for ninja there
        "PYTHONPATH": str(REPOSITORY),
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "torchs own"),
    }


@pytest.fixture
def with_packages(env, packages):
    return {**env, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{packages}"}


@pytest.fixture
def program(tmp_path):
    def write(text, name="program.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def kill_the_builder_of(agent, compiler):
    """SIGKILL for the rank that compiles; the agent ends the others."""
    pid = compiler.await_compile(100)
    while parent(pid) != agent.process.pid:
        pid = parent(pid)
        assert pid, agent.output()
    os.kill(pid, signal.SIGKILL)
    assert agent.wait(60) != 0


def test_deepspeeds_adam_is_compiled_once_for_four_ranks_after_the_first_builder_was_killed(
    compiler, with_packages, program, root
):
    job = [*TORCHRUN, *WITH_NODECACHE, program(ADAM)]
    compiler.hold()
    with Running(job, env=with_packages) as running:
        kill_the_builder_of(running, compiler)
    until(lambda: not compiler.running(), 20, "an end of the dead builder's compilers")
    compiler.let_go()

    out = run(job, env=with_packages, timeout=BUILD_SECONDS)

    assert out.count("agrees with torch's Adam") == 4
    assert compiler.compiled() == ["cpu_adam.cpp", "cpu_adam_impl.cpp"]
    assert not compiler.running()
    assert os.listdir(root / "staging") == []
    assert len(os.listdir(root / "entries")) == 1


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14),
    reason="torch 2.14 has a lock that ends with its holder",
)
def test_without_nodecache_the_same_kill_leaves_torch_waiting(compiler, with_packages, program, tmp_path):
    script = program(ADAM)
    compiler.hold()
    with Running([*TORCHRUN, script], env=with_packages) as running:
        kill_the_builder_of(running, compiler)
    lock = tmp_path / "torchs own" / "cpu_adam" / "lock"
    assert lock.exists()
    for pid in compiler.running():  # nobody ended those
        os.kill(pid, signal.SIGKILL)
    compiler.let_go()

    with Running([sys.executable, script], env=with_packages) as again:
        with pytest.raises(subprocess.TimeoutExpired):
            again.process.wait(STUCK_SECONDS)
        assert "Loading extension module" not in again.output()
    assert compiler.compiled() == []
    assert lock.exists()


@pytest.mark.parametrize(
    ("text", "sources", "said"),
    [
        (QTORCH, ["bit_helper.cpp", "quant_cpu.cpp", "sim_helper.cpp"], "[0.25, -0.5, 1.75]"),
        (BREVITAS, ["autograd_ste_ops.cpp"], "[0.0, 2.0] [1.0, 1.0]"),
    ],
    ids=["qtorch", "brevitas"],
)
def test_packages_that_build_when_they_are_imported_are_built_once_for_all(
    compiler, with_packages, program, text, sources, said
):
    env = {**with_packages, "BREVITAS_NATIVE_STE_BACKEND": "1", "BREVITAS_VERBOSE": "1"}
    command = [sys.executable, *WITH_NODECACHE, program(text)]
    with ExitStack() as stack:
        started = [stack.enter_context(Running(command, env=env)) for _ in range(3)]
        for each in started:
            assert each.wait(BUILD_SECONDS) == 0, each.output()
            assert said in each.output()
    assert said in run(command, env=env, timeout=60)
    assert compiler.compiled() == sources


def test_torchs_examples_for_load_and_load_inline_work_as_they_stand(compiler, env, program, tmp_path):
    program(EXTENSION, "extension.cpp")
    examples = {
        "[0.5, 0.5]": [sys.executable, *WITH_NODECACHE, program(LOAD_EXAMPLE, "load_example.py")],
        "[2.0, 2.0]": [sys.executable, *WITH_NODECACHE, program(INLINE_EXAMPLE, "inline_example.py")],
    }
    with ExitStack() as stack:
        for said, each in {
            said: stack.enter_context(Running(command, env=env, cwd=tmp_path)) for said, command in examples.items()
        }.items():
            assert each.wait(BUILD_SECONDS) == 0, each.output()
            assert said in each.output()
    assert compiler.compiled() == ["extension.cpp", "main.cpp"]
    for said, command in examples.items():
        assert said in run(command, env=env, cwd=tmp_path, timeout=60)
    assert os.listdir(tmp_path / "torchs own" / "extension") == ["extension.so"]
    assert (tmp_path / "torchs own" / "extension" / "extension.so").is_symlink()
