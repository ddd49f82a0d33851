//! Starting the program and hearing what it says.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// The program, with an environment that says nothing.
pub(crate) fn downpour(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_downpour"));
    command
        .args(args)
        .env_remove("TF_CONFIG")
        .env_remove("DOWNPOUR_LOG")
        .stdin(Stdio::null());
    command
}

/// Runs the program to its end.
pub(crate) fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

/// A task that serves. It is killed when the test is over.
pub(crate) struct Task {
    pub(crate) child: Child,
    stdout: BufReader<ChildStdout>,
    /// The line that says where it listens.
    pub(crate) first_line: String,
}

impl Task {
    /// Starts `downpour serve` and waits until it listens.
    pub(crate) fn start(command: &mut Command) -> Task {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut first_line = String::new();
        stdout.read_line(&mut first_line).unwrap();
        assert!(
            first_line.contains("listens on grpc://"),
            "the task ended with {:?}",
            child.wait()
        );
        Task {
            child,
            stdout,
            first_line,
        }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> String {
        let (_, address) = self.first_line.split_once("grpc://").unwrap();
        // In a log of JSON it is followed by the end of a text.
        let end = address.find('"').unwrap_or(address.len());
        address[..end].trim().to_owned()
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// Sends a signal, as in `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end; returns its exit code and what else it printed.
    pub(crate) fn wait(&mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
