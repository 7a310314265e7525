"""Variables that make a program run code which is not its own: search paths, preloads, plugins.

Called by the node's policy. An administrator who names the programs that jobs may bring means
the code that these programs are; a library path from a spec would put other code into them. The
list is closed and cannot be complete: a program may have variables of its own that load code.
"""

import re

NAMES = frozenset(
    {
        # Where programs, their libraries and their settings are looked for.
        "PATH", "HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "LIBPATH", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH",
        "GETCONF_DIR", "MALLOC_CHECK_", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES", "GIO_MODULE_DIR",
        # Shells.
        "BASH_ENV", "ENV", "SHELL", "IFS", "CDPATH", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "ZDOTDIR",
        # Interpreters.
        "NODE_OPTIONS", "NODE_PATH", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH", "JAVA_HOME",
        "PHPRC", "PHP_INI_SCAN_DIR", "TCLLIBPATH", "R_HOME", "R_PROFILE", "R_PROFILE_USER", "R_ENVIRON",
        "R_ENVIRON_USER", "R_LIBS", "R_LIBS_USER", "__PYVENV_LAUNCHER__",
        # CUDA, its tools, and what is compiled or loaded at run time.
        "CUDA_INJECTION32_PATH", "CUDA_INJECTION64_PATH", "NVTX_INJECTION32_PATH", "NVTX_INJECTION64_PATH",
        "CUDA_HOME", "CUDA_PATH", "CC", "CXX", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "TORCH_EXTENSIONS_DIR",
        "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_DUMP_DIR", "TRITON_HOME", "TRITON_OVERRIDE_DIR",
        "TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH", "OCL_ICD_VENDORS", "OCL_ICD_FILENAMES",
        # Networks.
        "NCCL_CONF_FILE", "UCX_MODULE_DIR", "FI_PROVIDER_PATH", "RDMAV_DRIVERS", "IBV_DRIVERS", "OPAL_PREFIX",
    }
)  # fmt: skip
PREFIXES = (
    "LD_", "DYLD_", "PYTHON", "PERL", "RUBY", "GEM_", "BUNDLE_", "LUA_", "JULIA_", "BASH_FUNC_", "GIT_",
    "OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_",
)  # fmt: skip
HARMLESS = frozenset({"PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONFAULTHANDLER", "PYTHONDONTWRITEBYTECODE"})
"""Begin as those do, and load nothing."""
_PLUGIN = re.compile(r"\A(NCCL|NVSHMEM|GLOO|UCC)_(.*_)?PLUGINS?(_.*)?\Z")


def loads_code(name: str) -> bool:
    """A variable of this name can put other code into a program."""
    if name in HARMLESS:
        return False
    return name in NAMES or name.startswith(PREFIXES) or _PLUGIN.match(name) is not None
