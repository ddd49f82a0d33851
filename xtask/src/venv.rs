//! The pythons that comparisons need: one with TensorFlow 2.21, opponent of the benchmarks and oracle
//! of the conformance cases, one with TensorBoard, which reads event files, and one with SciPy. An environment variable
//! names one that already exists; otherwise one is made once under the build folder.

use crate::process::{run, target_dir};
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A python with one package.
struct Venv {
    folder: &'static str,
    /// The environment variable that names another python.
    variable: &'static str,
    module: &'static str,
    requirement: &'static str,
}

/// What the comparison is against; every number and text of conformance was seen on this version.
const TENSORFLOW: Venv = Venv {
    folder: "tf-venv",
    variable: "DOWNPOUR_TF_PYTHON",
    module: "tensorflow",
    requirement: "tensorflow-cpu==2.21.0",
};

/// Apart from TensorFlow, which no longer brings it and which it does not need.
const TENSORBOARD: Venv = Venv {
    folder: "tb-venv",
    variable: "DOWNPOUR_TB_PYTHON",
    module: "tensorboard",
    requirement: "tensorboard==2.20.0",
};

/// The opponent of Sandblaster's L-BFGS.
const SCIPY: Venv = Venv {
    folder: "scipy-venv",
    variable: "DOWNPOUR_SCIPY_PYTHON",
    module: "scipy",
    requirement: "scipy==1.16.3",
};

/// Returns a python that imports SciPy.
pub(crate) fn ensure_scipy() -> Result<PathBuf> {
    SCIPY.ensure()
}

/// Returns a python that imports TensorFlow, creating the virtual environment when it is missing.
pub(crate) fn ensure() -> Result<PathBuf> {
    TENSORFLOW.ensure()
}

/// Returns a python that imports TensorBoard.
pub(crate) fn ensure_tensorboard() -> Result<PathBuf> {
    TENSORBOARD.ensure()
}

impl Venv {
    fn ensure(&self) -> Result<PathBuf> {
        let (variable, requirement) = (self.variable, self.requirement);
        if let Some(python) = std::env::var_os(variable) {
            let python = PathBuf::from(python);
            if !self.is_in(&python) {
                bail!(
                    "{variable}={} has no {}; install {requirement} there or unset it",
                    python.display(),
                    self.module
                );
            }
            return Ok(python);
        }
        let venv = target_dir().join(self.folder);
        let python = venv.join("bin").join("python");
        if self.is_in(&python) {
            return Ok(python);
        }
        self.create(&venv, &python).with_context(|| {
            format!(
                "there is no python with {requirement}. Needed: `python3` (3.10 to 3.13) with the \
                 `venv` module, and a package index that has the wheel. Or set {variable} to a \
                 python that has it"
            )
        })?;
        if !self.is_in(&python) {
            bail!(
                "{} was made but does not find {}",
                python.display(),
                self.module
            );
        }
        Ok(python)
    }

    fn create(&self, venv: &Path, python: &Path) -> Result<()> {
        eprintln!("making {} with {}", venv.display(), self.requirement);
        run(Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(venv))?;
        run(Command::new(python).args(["-m", "pip", "install", "--quiet", self.requirement]))
    }

    /// Asks for the package without importing it, which would take seconds.
    fn is_in(&self, python: &Path) -> bool {
        let find = format!(
            "import importlib.util as u, sys; sys.exit(u.find_spec('{}') is None)",
            self.module
        );
        Command::new(python)
            .args(["-c", &find])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    }
}
