//! Whether a task is well, for those who watch over it, on the task's own port: the standard service
//! `grpc.health.v1.Health`, and for those who speak no gRPC plain HTTP/1: `GET /healthz` (it lives) and `GET /readyz` (it
//! takes new work: serving and not draining). Being asked keeps no task and counts as no client. `GET /metrics` and
//! `GET /steps` (what the next steps do) are for those who may look into the task.

use crate::Admission;
use crate::lane::MAGIC;
use crate::serve::http::write_all;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

/// Longest head of an HTTP/1 request that is read.
const MAX_HEAD: usize = 8 << 10;
/// How long an HTTP/1 exchange may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// What answers whether new work is taken. The last two are whom a client of the protocol may ask about.
const READY: [&str; 4] = [
    "",
    "readiness",
    "tensorflow.MasterService",
    "tensorflow.WorkerService",
];
/// What answers whether the process lives.
const LIVE: &str = "liveness";

/// What a task says about itself.
pub struct Health(HealthReporter);

impl Health {
    /// A task that serves, and the service that says so.
    pub async fn serving() -> (Health, HealthServer<HealthService>) {
        let health = Health(HealthReporter::new());
        for name in READY.into_iter().chain([LIVE]) {
            health
                .0
                .set_service_status(name, ServingStatus::Serving)
                .await;
        }
        let service = HealthService::from_health_reporter(health.0.clone());
        (health, HealthServer::new(service))
    }

    /// No new work is taken any more; those who watch are told.
    pub async fn draining(&self) {
        for name in READY {
            self.0
                .set_service_status(name, ServingStatus::NotServing)
                .await;
        }
    }

    /// The end: whoever watches is let go.
    pub async fn ended(&mut self) {
        for name in READY.into_iter().chain([LIVE]) {
            self.0.clear_service_status(name).await;
        }
    }
}

/// How a connection begins.
pub(crate) enum Greeting {
    /// As HTTP/2, or as nothing that is known: that is for HTTP/2 to refuse.
    Http2,
    /// As a question of HTTP/1.
    Http1,
    /// As another task of ours that wants a lane.
    Lane,
    /// Not at all within the time.
    Silence,
}

/// Looks at the first bytes of a connection and leaves them there.
pub(crate) async fn greeting(socket: &TcpStream, patience: Duration) -> Greeting {
    /// Between two looks at a greeting that comes in pieces.
    const PAUSE: Duration = Duration::from_millis(5);
    const KNOWN: [&[u8]; 3] = [b"GET ", b"HEAD", b"DPLA"];
    let look = async {
        let mut head = [0; 4];
        loop {
            match socket.peek(&mut head).await {
                Ok(4) if MAGIC.starts_with(&head) => return Greeting::Lane,
                Ok(4) if KNOWN.contains(&head.as_slice()) => return Greeting::Http1,
                Ok(n @ 1..4) if KNOWN.iter().any(|k| k.starts_with(&head[..n])) => {
                    tokio::time::sleep(PAUSE).await;
                }
                _ => return Greeting::Http2,
            }
        }
    };
    let looked = tokio::time::timeout(patience, look).await;
    looked.unwrap_or(Greeting::Silence)
}

/// Answers one question of HTTP/1 and closes. What takes its time is given up when the task ends.
pub(crate) async fn answer(
    socket: TcpStream,
    admission: &Admission,
    mut ends: watch::Receiver<bool>,
) {
    // Whoever does not listen is told nothing.
    let asked = tokio::time::timeout(PATIENCE, question(&socket)).await;
    let Ok(Ok(Some(head))) = asked else {
        return;
    };
    let from = socket.peer_addr().ok().map(|a| a.ip());
    let from = from.filter(|_| names_this_host(&head));
    let reply = match is_about_steps(&head) {
        false => reply(&head, admission.is_open(), || admission.metrics(from)),
        true => match admission.record(from.filter(|_| !is_of_another_page(&head))) {
            Err(why) => written("403 Forbidden", "text/plain", why, true),
            // The recorder bounds how long it takes.
            Ok(recording) => {
                let recorded = tokio::select! {
                    recorded = recording => recorded,
                    _ = ends.wait_for(|ends| *ends) => Err("the task ends".to_owned()),
                };
                match recorded {
                    Ok(steps) => written("200 OK", "application/json", &steps, true),
                    Err(why) => written("503 Service Unavailable", "text/plain", &why, true),
                }
            }
        },
    };
    let _ = tokio::time::timeout(PATIENCE, write_all(&socket, reply.as_bytes())).await;
}

/// The line and headers of a request, and nothing if its sender has left before their end.
async fn question(socket: &TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let is_whole = |head: &[u8]| head.windows(4).any(|w| w == b"\r\n\r\n");
    while !is_whole(&head) && head.len() <= MAX_HEAD {
        let mut piece = [0; 1024];
        socket.readable().await?;
        match socket.try_read(&mut piece) {
            Ok(0) => return Ok(None),
            Ok(n) => head.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(Some(head))
}

/// Whether a request is `GET /steps`.
fn is_about_steps(head: &[u8]) -> bool {
    let rest = head.strip_prefix(b"GET /steps").unwrap_or_default();
    head.len() <= MAX_HEAD && matches!(rest.first(), Some(b' ' | b'?'))
}

/// Whether a browser asks on behalf of a page from elsewhere. Unlike figures, which such a page cannot read, recording
/// steps has an effect.
fn is_of_another_page(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    let site = text
        .lines()
        .find_map(|line| line.strip_prefix("sec-fetch-site:"));
    site.is_some_and(|site| !matches!(site.trim(), "same-origin" | "none"))
}

/// Whether a request is meant for a loopback address, or says nothing of its host: a page of the
/// internet whose name leads here names that.
fn names_this_host(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let host = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    });
    let Some(host) = host else {
        return true;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    is_loopback || name.eq_ignore_ascii_case("localhost")
}

/// What is said to a request.
fn reply(
    head: &[u8],
    is_open: bool,
    metrics: impl FnOnce() -> Result<String, &'static str>,
) -> String {
    let line = head.split(|b| *b == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let metrics = (path == "/metrics" && head.len() <= MAX_HEAD).then(metrics);
    let (status, body) = match path {
        _ if head.len() > MAX_HEAD => ("431 Request Header Fields Too Large", "too much\n"),
        "/metrics" => match &metrics {
            Some(Ok(text)) => ("200 OK", text.as_str()),
            Some(Err(why)) => ("403 Forbidden", *why),
            None => ("404 Not Found", ""),
        },
        "/healthz" | "/livez" => ("200 OK", "ok\n"),
        "/readyz" if is_open => ("200 OK", "ok\n"),
        "/readyz" => ("503 Service Unavailable", "shutting down\n"),
        _ => (
            "404 Not Found",
            "a Downpour task speaks gRPC here; over HTTP/1 it answers /healthz, /readyz, /metrics and /steps\n",
        ),
    };
    written(status, "text/plain", body, method != Some("HEAD"))
}

/// An answer as it is sent, with its content or only its length.
fn written(status: &str, kind: &str, body: &str, is_whole: bool) -> String {
    let shown = if is_whole { body } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{shown}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(request: &str, is_open: bool, status: &str) -> String {
        let said = reply(request.as_bytes(), is_open, || Err("nothing"));
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
        said.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    #[test]
    fn a_draining_task_lives_but_is_not_ready() {
        assert_eq!(check("GET /healthz HTTP/1.1\r\n\r\n", true, "200"), "ok\n");
        assert_eq!(
            check("GET /readyz?verbose HTTP/1.1\r\n\r\n", true, "200"),
            "ok\n"
        );
        assert_eq!(check("GET /healthz HTTP/1.0\r\n\r\n", false, "200"), "ok\n");
        check("GET /readyz HTTP/1.1\r\n\r\n", false, "503");
        assert_eq!(check("HEAD /healthz HTTP/1.1\r\n\r\n", true, "200"), "");
    }

    #[test]
    fn pages_of_the_internet_record_no_steps() {
        for (request, about, foreign) in [
            ("GET /steps HTTP/1.1\r\n\r\n", true, false),
            (
                "GET /steps?x HTTP/1.1\r\nSec-Fetch-Site: none\r\n\r\n",
                true,
                false,
            ),
            (
                "GET /steps HTTP/1.1\r\nsec-fetch-site: same-origin\r\n\r\n",
                true,
                false,
            ),
            (
                "GET /steps HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\n\r\n",
                true,
                true,
            ),
            (
                "GET /steps HTTP/1.1\r\nSEC-FETCH-SITE:same-site\r\n\r\n",
                true,
                true,
            ),
            ("GET /stepsister HTTP/1.1\r\n\r\n", false, false),
            ("HEAD /steps HTTP/1.1\r\n\r\n", false, false),
        ] {
            let head = request.as_bytes();
            let found = (is_about_steps(head), is_of_another_page(head));
            assert_eq!(found, (about, foreign), "{request}");
        }
    }

    #[test]
    fn pages_of_the_internet_read_no_figures() {
        for (host, own) in [
            ("", true),
            ("Host: 127.0.0.1:2222\r\n", true),
            ("host: LOCALHOST:1\r\n", true),
            ("Host: [::1]:2222\r\n", true),
            ("Host: evil.example:2222\r\n", false),
            ("Host: 127.0.0.1.evil.example\r\n", false),
            ("Host:\r\n", false),
        ] {
            let head = format!("GET /metrics HTTP/1.1\r\n{host}\r\n");
            assert_eq!(names_this_host(head.as_bytes()), own, "{host}");
        }
        check("GET /metrics HTTP/1.1\r\n\r\n", true, "403");
    }

    #[test]
    fn other_questions_are_told_where_they_are() {
        assert!(check("GET / HTTP/1.1\r\n\r\n", true, "404").contains("gRPC"));
        check("GET", true, "404");
        check("GET \u{fffd} \r\n\r\n", true, "404");
        check(&format!("GET /{}", "a".repeat(MAX_HEAD)), true, "431");
    }
}
