//! The python that has TensorFlow 2.21: opponent of the benchmarks and oracle of the conformance
//! cases. `DOWNPOUR_TF_PYTHON` names one that already exists; otherwise one is made once under the
//! build folder.

use crate::process::{run, target_dir};
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the comparison is against; every number and text of conformance was seen on this version.
const REQUIREMENT: &str = "tensorflow-cpu==2.21.0";

/// Returns a python that imports TensorFlow, creating the virtual environment when it is missing.
pub(crate) fn ensure() -> Result<PathBuf> {
    if let Some(python) = std::env::var_os("DOWNPOUR_TF_PYTHON") {
        let python = PathBuf::from(python);
        if !has_tensorflow(&python) {
            bail!(
                "DOWNPOUR_TF_PYTHON={} has no tensorflow; install {REQUIREMENT} there or unset it",
                python.display()
            );
        }
        return Ok(python);
    }
    let venv = target_dir().join("tf-venv");
    let python = venv.join("bin").join("python");
    if has_tensorflow(&python) {
        return Ok(python);
    }
    create(&venv, &python).with_context(|| {
        format!(
            "there is no python with {REQUIREMENT}. Needed: `python3` (3.10 to 3.13) with the `venv` \
             module, and a package index that has the wheel. Or set DOWNPOUR_TF_PYTHON to a python \
             that has it"
        )
    })?;
    if !has_tensorflow(&python) {
        bail!("{} was made but does not find tensorflow", python.display());
    }
    Ok(python)
}

fn create(venv: &Path, python: &Path) -> Result<()> {
    eprintln!("making {} with {REQUIREMENT}", venv.display());
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(venv))?;
    run(Command::new(python).args(["-m", "pip", "install", "--quiet", REQUIREMENT]))
}

/// Asks for the package without importing it, which would take seconds.
fn has_tensorflow(python: &Path) -> bool {
    Command::new(python)
        .args([
            "-c",
            "import importlib.util as u, sys; sys.exit(u.find_spec('tensorflow') is None)",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}
