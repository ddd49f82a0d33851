//! Processes of a row: started with pipes, asked line by line, ended when dropped; and what the system says of
//! the time they use.

use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest time for an answer: the first step of a row fills a table of gigabytes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A task of the row; killed when dropped.
pub(crate) struct Task {
    pub(crate) name: String,
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Task {
    /// Starts a process.
    pub(crate) fn start(name: &str, command: &mut Command) -> Result<Task> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take().context("a child without stdout")?;
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Task {
            name: name.to_owned(),
            orders: child.stdin.take(),
            child,
            answers,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order.
    pub(crate) fn tell(&mut self, order: &str) -> Result<()> {
        let orders = self.orders.as_mut().context("no stdin")?;
        writeln!(orders, "{order}").with_context(|| format!("{} takes no orders", self.name))?;
        Ok(orders.flush()?)
    }

    /// The next line it says.
    pub(crate) fn hear(&mut self) -> Result<String> {
        match self.hear_within(PATIENCE)? {
            Some(line) => Ok(line),
            None => bail!("{} has not answered for {PATIENCE:?}", self.name),
        }
    }

    /// The next line, if one comes in time.
    pub(crate) fn hear_within(&mut self, time: Duration) -> Result<Option<String>> {
        match self.answers.recv_timeout(time) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                bail!("{} ended with {status}", self.name)
            }
        }
    }

    /// Waits until it listens.
    pub(crate) fn wait_listening(&mut self, address: &str) -> Result<()> {
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}", self.name);
            }
            if begin.elapsed() > PATIENCE {
                bail!("{} does not listen on {address}", self.name);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // One that has ended by itself cannot be killed, and that is well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Addresses of the loopback interface that were free a moment ago, no two the same.
pub(crate) fn free_addresses(count: usize) -> Result<Vec<String>> {
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()?;
    held.iter()
        .map(|l| Ok(l.local_addr()?.to_string()))
        .collect()
}

/// Processor time of a process so far, in steps of 10 ms (the system's clock tick).
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in brackets, may hold anything; fields 14 and 15 are counted from behind it.
    let behind = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut ticks = behind.split_whitespace().skip(11);
    let mut next = || ticks.next().and_then(|t| t.parse::<f64>().ok());
    match (next(), next()) {
        (Some(user), Some(system)) => Ok((user + system) / 100.0),
        _ => bail!("/proc/{pid}/stat cannot be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::cpu_seconds;

    #[test]
    fn a_process_knows_its_time() {
        let before = cpu_seconds(std::process::id()).unwrap();
        let mut x = 1u64;
        while cpu_seconds(std::process::id()).unwrap() < before + 0.02 {
            x = x.wrapping_mul(3);
        }
        assert_ne!(x, 0);
    }
}
