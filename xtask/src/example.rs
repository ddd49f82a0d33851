//! The README's first five minutes, as a test: start `downpour serve`, train with the shipped
//! client, stop the server with Ctrl-C.

use crate::process::{root, run_watched, server_binary};
use crate::venv;
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Test accuracy of the example's last line below which training did not work.
const MIN_ACCURACY: f64 = 0.9;
/// A server that was interrupted must be gone by then.
const STOP_TIME: Duration = Duration::from_secs(10);

/// Runs the example; the server must announce itself, the model must learn, the stop be clean.
pub(crate) fn run() -> Result<String> {
    let python = venv::ensure()?;
    let port = free_port()?;
    let mut server = Command::new(server_binary())
        .args(["serve", "--port", &port.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start `downpour serve`")?;
    let outcome = announced(&mut server, port).and_then(|()| {
        train(
            Command::new(python)
                .current_dir(root())
                .arg("examples/mnist_client.py")
                .args(["--port", &port.to_string()]),
        )
    });
    let stopped = interrupt(&mut server);
    let accuracy = outcome?;
    stopped?;
    if accuracy < MIN_ACCURACY {
        bail!("the example's model reached only {accuracy} test accuracy");
    }
    Ok(format!("test accuracy {accuracy}"))
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port")?;
    Ok(listener.local_addr()?.port())
}

/// Waits for the one line that says where the server listens.
fn announced(server: &mut Child, port: u16) -> Result<()> {
    let stdout = server.stdout.take().context("the server has no stdout")?;
    let mut line = String::new();
    BufReader::new(stdout)
        .read_line(&mut line)
        .context("cannot read the server's first line")?;
    if !line.contains(&format!("grpc://127.0.0.1:{port}")) {
        bail!("the server's first line does not say where it listens: {line:?}");
    }
    Ok(())
}

/// Runs the client and returns the last test accuracy it printed.
fn train(client: &mut Command) -> Result<f64> {
    let mut accuracy = None;
    run_watched(client, |line| {
        if let Some((_, rest)) = line.split_once("test accuracy ") {
            accuracy = rest.split(' ').next().and_then(|n| n.parse().ok());
        }
    })?;
    accuracy.context("the example printed no test accuracy")
}

/// Ctrl-C, then the exit status a user would see.
fn interrupt(server: &mut Child) -> Result<()> {
    Command::new("kill")
        .args(["-INT", &server.id().to_string()])
        .status()
        .context("cannot interrupt the server")?;
    let start = Instant::now();
    while start.elapsed() < STOP_TIME {
        if let Some(status) = server.try_wait()? {
            if status.success() {
                return Ok(());
            }
            bail!("the interrupted server ended with {status}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    server.kill()?;
    server.wait()?;
    bail!("the server did not stop within {STOP_TIME:?} of Ctrl-C")
}
