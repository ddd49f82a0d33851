//! Asks a task to record what its next steps do.

use crate::serve::control::Refusal;
use crate::serve::http::write_all;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// Bytes of the longest recording that is taken in.
const MAX_RECORDING: usize = 32 << 20;

/// Has the task at `address` record its next steps; a trace in the form of Chrome's viewer, as JSON.
pub async fn record_steps(address: &str, limit: Duration) -> Result<String, Refusal> {
    let asked = tokio::time::timeout(limit, ask(address)).await;
    let answer = match asked {
        Ok(Ok(answer)) => answer,
        Ok(Err(e)) => return Err(Refusal::Silent(format!("the task at {address}: {e}"))),
        Err(_) => {
            let silent = format!("the task at {address} does not answer");
            return Err(Refusal::Silent(silent));
        }
    };
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        Some("403" | "503") => Err(Refusal::Unwilling(body.trim().to_owned())),
        _ => Err(Refusal::Unwilling(format!(
            "the task at {address} cannot record steps: not Downpour's, or of an earlier version"
        ))),
    }
}

async fn ask(address: &str) -> io::Result<String> {
    let socket = TcpStream::connect(address).await?;
    let request = b"GET /steps HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    write_all(&socket, request).await?;
    let mut answer = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        socket.readable().await?;
        match socket.try_read(&mut piece) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        if answer.len() > MAX_RECORDING {
            return Err(io::Error::other("the recording is too large"));
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_that_nobody_listens_on_records_nothing() {
        let refusal = record_steps("127.0.0.1:1", Duration::from_secs(5)).await;
        assert!(matches!(refusal, Err(Refusal::Silent(_))), "{refusal:?}");
    }
}
