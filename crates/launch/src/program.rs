//! Whether the programs of a job are there, before anything is started.

use crate::launcher::LaunchError;
use crate::plan::Planned;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Says which program is missing, if one is.
pub(crate) fn check(planned: &[Planned], path: &OsStr) -> Result<(), LaunchError> {
    for process in planned {
        let program = process.command.first().map_or("", String::as_str);
        find(program, path).map_err(|reason| LaunchError::Program {
            task: process.name.clone(),
            reason,
        })?;
    }
    Ok(())
}

fn find(program: &str, path: &OsStr) -> Result<(), String> {
    let shown = program.escape_debug();
    if program.contains('/') {
        let found = Path::new(program);
        return match found.metadata() {
            Err(e) => Err(format!("the program '{shown}' cannot be started: {e}")),
            Ok(m) if !m.is_file() => {
                Err(format!("'{shown}' is no program but a directory or device"))
            }
            Ok(_) if !is_executable(found) => {
                Err(format!("'{shown}' is not executable; chmod +x makes it so"))
            }
            Ok(_) => Ok(()),
        };
    }
    let mut places = std::env::split_paths(path);
    match places.any(|place| is_executable(&place.join(program))) {
        true => Ok(()),
        false => match Path::new(program).is_file() {
            true => Err(format!(
                "there is no program '{shown}' on the PATH; did you mean './{shown}'?"
            )),
            false => Err(format!("there is no program '{shown}' on the PATH")),
        },
    }
}

fn is_executable(path: &Path) -> bool {
    let found = path.metadata();
    found.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_program_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        let path = OsStr::new("/usr/bin:/bin");
        assert_eq!(find("sh", path), Ok(()));
        assert_eq!(find("/bin/sh", OsStr::new("")), Ok(()));
        for (program, want) in [
            (
                "no-such-program",
                "no program 'no-such-program' on the PATH",
            ),
            ("/no/such", "No such file"),
            ("/tmp", "no program but a directory"),
            (plain.to_str().unwrap(), "not executable"),
            ("evil\nname", "'evil\\nname'"),
        ] {
            let error = find(program, path).unwrap_err();
            assert!(error.contains(want) && !error.contains('\n'), "{error}");
        }
    }
}
