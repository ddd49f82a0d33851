//! One process of a service: started with its output in a file, watched until it serves, ended by
//! its process id. The kernel ends it too if this program is killed (`setpriv --pdeathsig`).

use anyhow::{Context as _, Result, bail};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A service on a busy machine serves sooner than this, or does not at all.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);
/// How often it is asked whether it serves.
const POLL: Duration = Duration::from_millis(100);
/// How long it may take to end when it is told to.
const GRACE: Duration = Duration::from_secs(5);
/// How long one question may take.
const ANSWER: Duration = Duration::from_secs(2);

/// A process of a service.
pub(super) struct Daemon {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts a command whose output goes to `NAME.log` in a folder.
    pub(super) fn start(name: &'static str, command: &Command, folder: &Path) -> Result<Daemon> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).context("cannot make its log")?;
        let copy = file.try_clone().context("cannot share its log")?;
        let mut held = Command::new("setpriv");
        held.args(["--pdeathsig", "KILL", "--"])
            .arg(command.get_program())
            .args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => held.env(key, value),
                None => held.env_remove(key),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            held.current_dir(folder);
        }
        held.stdin(Stdio::null()).stdout(file).stderr(copy);
        let child = held.spawn();
        let child = child.with_context(|| format!("cannot start {name} under setpriv"))?;
        Ok(Daemon { name, child, log })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// Waits until `serves` says so; fails if the process ends before, or never comes so far.
    pub(super) fn wait_until(&mut self, serves: impl Fn() -> bool) -> Result<()> {
        let begin = Instant::now();
        while !serves() {
            let ended = self.child.try_wait().context("cannot look after it")?;
            if let Some(status) = ended {
                bail!("{} ended with {status}:\n{}", self.name, self.last_words());
            }
            if begin.elapsed() > PATIENCE {
                let seconds = PATIENCE.as_secs();
                let words = self.last_words();
                bail!(
                    "{} does not serve after {seconds} s; it said:\n{words}",
                    self.name
                );
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Fails if it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.child.try_wait().context("cannot look after it")? {
            Some(status) => bail!("{} ended with {status}:\n{}", self.name, self.last_words()),
            None => Ok(()),
        }
    }

    /// Ends it without asking.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // `setpriv` has become the program, so this id is the service's own.
        let id = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        let begin = Instant::now();
        while begin.elapsed() < GRACE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kills a process with all that it has started.
pub(super) fn kill_tree(process: u32) {
    let children = format!("/proc/{process}/task/{process}/children");
    let children = std::fs::read_to_string(children).unwrap_or_default();
    let _ = Command::new("kill")
        .args(["-9", &process.to_string()])
        .output();
    for child in children.split_whitespace().filter_map(|n| n.parse().ok()) {
        kill_tree(child);
    }
}

/// As many ports of the loopback as asked for, free a moment ago and different.
pub(super) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0").context("no free port")?;
        *port = listener
            .local_addr()
            .context("a port without number")?
            .port();
        held.push(listener);
    }
    Ok(ports)
}

/// What a port of the loopback answers to these bytes; nothing if it does not.
pub(super) fn ask(port: u16, question: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(ANSWER)).ok()?;
    stream.write_all(question.as_bytes()).ok()?;
    let mut answer = Vec::new();
    // Whatever came before the time was over counts.
    let _ = stream.read_to_end(&mut answer);
    Some(String::from_utf8_lossy(&answer).into_owned())
}

/// What a web server on a port of the loopback answers.
pub(super) fn get(port: u16, path: &str) -> Option<String> {
    ask(
        port,
        &format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_ends_early_is_named_with_its_last_words() {
        let folder = std::env::temp_dir().join(format!("daemon-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such luck; exit 3"]);
        let mut daemon = Daemon::start("unlucky", &command, &folder).unwrap();
        let error = daemon.wait_until(|| false).unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(
            error.contains("unlucky") && error.contains("no such luck"),
            "{error}"
        );
    }

    #[test]
    fn a_dropped_daemon_is_gone() {
        let folder = std::env::temp_dir().join(format!("dropped-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("sleep");
        command.arg("600");
        let daemon = Daemon::start("sleeper", &command, &folder).unwrap();
        let process = PathBuf::from(format!("/proc/{}", daemon.child.id()));
        assert!(process.exists());
        drop(daemon);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(!process.exists());
    }
}
