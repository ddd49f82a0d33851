//! The API of a cluster, through `kubectl proxy` on a socket of the file system that only this user reaches: so contexts,
//! credentials, their helper programs and proxies are those of kubectl, and one process of it serves all streams. What
//! is spoken with it is as much of HTTP/1.1 as it takes: one request on a connection.
//!
//! The proxy ends with this program however that ends: it is held by a pipe.

use crate::guard::group_of_its_own;
use crate::output::cleaned;
use crate::site::own_folder;
use parking_lot::Mutex;
use serde_json::Value;
use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A cluster answers its first question by then, or cannot be used.
const FIRST_ANSWER: Duration = Duration::from_secs(4);
/// Later ones may take longer: webhooks look at what is made.
const ANSWER: Duration = Duration::from_secs(15);
/// How long a read of a stream waits before somebody is asked whether it is still wanted.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
/// Longest answer that is read whole.
const MAX_ANSWER: u64 = 64 << 20;
/// Longest line of a head.
const MAX_HEAD: u64 = 64 << 10;
const POLL: Duration = Duration::from_millis(20);

/// Why a request brought nothing.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The cluster says no: HTTP's status, and why.
    Status(u16, String),
    /// There was no answer.
    NoAnswer(String),
}

impl Refused {
    pub(crate) fn is(&self, status: u16) -> bool {
        matches!(self, Refused::Status(is, _) if *is == status)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Status(401, why) => write!(f, "kubectl's credentials are not accepted: {why}"),
            Refused::Status(403, why) => write!(f, "kubectl's user may not do this: {why}"),
            Refused::Status(_, why) | Refused::NoAnswer(why) => f.write_str(why),
        }
    }
}

/// The way to a cluster.
pub(crate) struct Api {
    socket: PathBuf,
    proxy: Mutex<Child>,
}

/// Ends kubectl when its standard input ends, and removes the socket; ends when kubectl does.
const HOLD: &str = "exec 3<&0; socket=$1; shift; \"$@\" </dev/null 3<&- & own=$!; \
    { cat <&3 >/dev/null; kill $own; rm -f \"$socket\"; } 2>/dev/null & wait $own";

impl Api {
    /// Starts the proxy, and asks whether the cluster answers. `options` are kubectl's.
    pub(crate) fn start(options: &[String]) -> Result<Api, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let begin = Instant::now();
        let folder =
            own_folder(Path::new("/tmp")).map_err(|e| format!("no place for a socket: {e}"))?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = folder.join(format!("kubectl-{}-{number}", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new("sh");
        command.args(["-c", HOLD, "sh"]).arg(&socket);
        command
            .args(["kubectl", "proxy", "--unix-socket"])
            .arg(&socket);
        command.args(options);
        let mut proxy = group_of_its_own(&mut command)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start 'sh' for kubectl: {e}"))?;
        let said = Arc::new(Mutex::new(String::new()));
        if let Some(stream) = proxy.stderr.take() {
            let said = said.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    *said.lock() = line;
                }
            });
        }
        let api = Api {
            socket,
            proxy: Mutex::new(proxy),
        };
        while UnixStream::connect(&api.socket).is_err() {
            let has_ended = !matches!(api.proxy.lock().try_wait(), Ok(None));
            if has_ended || begin.elapsed() > FIRST_ANSWER {
                let said = cleaned(said.lock().trim_start_matches("error: "));
                return Err(match (said.is_empty(), has_ended) {
                    (false, _) => format!("kubectl cannot be used: {said}"),
                    (true, true) => "there is no program 'kubectl' on the PATH".to_owned(),
                    (true, false) => "kubectl proxy does not start".to_owned(),
                });
            }
            std::thread::sleep(POLL);
        }
        let left = FIRST_ANSWER.saturating_sub(begin.elapsed());
        let answer = api.ask("GET", "/version", None, left.max(Duration::from_secs(1)));
        match answer {
            Ok(_) => Ok(api),
            Err(e) => Err(format!("the Kubernetes cluster cannot be used: {e}")),
        }
    }

    /// The way to what listens on a socket.
    #[cfg(test)]
    pub(crate) fn at(socket: PathBuf) -> Api {
        let proxy = Command::new("true").spawn().unwrap();
        Api {
            socket,
            proxy: Mutex::new(proxy),
        }
    }

    /// What a path of the API says.
    pub(crate) fn get(&self, path: &str) -> Result<Value, Refused> {
        self.ask("GET", path, None, ANSWER)
    }

    /// Makes an object.
    pub(crate) fn create(&self, path: &str, object: &Value) -> Result<Value, Refused> {
        self.ask("POST", path, Some(object), ANSWER)
    }

    /// Changes a part of an object.
    pub(crate) fn patch(&self, path: &str, change: &Value) -> Result<Value, Refused> {
        self.ask("PATCH", path, Some(change), ANSWER)
    }

    /// Removes objects.
    pub(crate) fn delete(&self, path: &str, options: &Value) -> Result<Value, Refused> {
        let mut options = options.clone();
        options["apiVersion"] = Value::from("v1");
        options["kind"] = Value::from("DeleteOptions");
        self.ask("DELETE", path, Some(&options), ANSWER)
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        within: Duration,
    ) -> Result<Value, Refused> {
        let deadline = Instant::now() + within;
        let is_over = Box::new(move || Instant::now() > deadline);
        let mut body_of = self.open(method, path, body, within, is_over)?;
        let mut text = Vec::new();
        let read = (&mut body_of).take(MAX_ANSWER).read_to_end(&mut text);
        let seconds = within.as_secs();
        read.map_err(|e| Refused::NoAnswer(no_answer(&e, seconds)))?;
        serde_json::from_slice(&text)
            .map_err(|e| Refused::NoAnswer(format!("it does not answer in JSON: {e}")))
    }

    /// A stream of an answer. `is_over` says that it is not wanted any more.
    pub(crate) fn stream(
        &self,
        path: &str,
        is_over: Box<dyn Fn() -> bool + Send>,
    ) -> Result<Body, Refused> {
        self.open("GET", path, None, ANSWER, is_over)
    }

    fn open(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        within: Duration,
        is_over: Box<dyn Fn() -> bool + Send>,
    ) -> Result<Body, Refused> {
        let failed = |e: io::Error| Refused::NoAnswer(no_answer(&e, within.as_secs()));
        let mut stream = UnixStream::connect(&self.socket).map_err(failed)?;
        stream.set_read_timeout(Some(LOOK)).map_err(failed)?;
        let text = body.map(Value::to_string).unwrap_or_default();
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, */*\r\nConnection: close\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        );
        stream.write_all(head.as_bytes()).map_err(failed)?;
        let patient = Patient { stream, is_over };
        let mut body = Body::begin(BufReader::new(patient)).map_err(failed)?;
        if (200..300).contains(&body.status) {
            return Ok(body);
        }
        let status = body.status;
        let mut said = Vec::new();
        // What came counts.
        let _ = (&mut body).take(MAX_HEAD).read_to_end(&mut said);
        Err(Refused::Status(status, reason(&said, status)))
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        let mut proxy = self.proxy.lock();
        drop(proxy.stdin.take());
        let _ = proxy.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn no_answer(e: &io::Error, seconds: u64) -> String {
    match e.kind() {
        io::ErrorKind::TimedOut => format!("no answer within {seconds} s"),
        _ => e.to_string(),
    }
}

/// Why the cluster said no, in one line.
fn reason(said: &[u8], status: u16) -> String {
    let text = String::from_utf8_lossy(said);
    let object: Option<Value> = serde_json::from_slice(said).ok();
    let message = object.as_ref().and_then(|o| o["message"].as_str());
    let line = message
        .unwrap_or(&text)
        .split('\n')
        .next()
        .unwrap_or_default();
    match line.trim().is_empty() {
        true => format!("HTTP status {status}"),
        false => cleaned(line.trim()),
    }
}

/// Reads as long as somebody wants it.
struct Patient<S> {
    stream: S,
    is_over: Box<dyn Fn() -> bool + Send>,
}

impl<S: Read> Read for Patient<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(into) {
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    if (self.is_over)() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

/// The body of an answer. Its end is told from a connection that broke.
pub(crate) struct Body {
    from: BufReader<Box<dyn Read + Send>>,
    status: u16,
    left: Left,
}

enum Left {
    /// So much of the body.
    Bytes(u64),
    /// So much of a chunk; others follow.
    Chunk(u64),
    /// All until the connection ends.
    Open,
}

impl Body {
    fn begin(from: BufReader<impl Read + Send + 'static>) -> io::Result<Body> {
        let from: Box<dyn Read + Send> = Box::new(from);
        let mut from = BufReader::new(from);
        let first = head_line(&mut from)?;
        let status = first.split(' ').nth(1).and_then(|s| s.parse().ok());
        let status = status.ok_or_else(|| io::Error::other("what answers does not speak HTTP"))?;
        let mut left = Left::Open;
        loop {
            let line = head_line(&mut from)?;
            let Some((name, text)) = line.split_once(':') else {
                break;
            };
            let text = text.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    let length = text.parse().map_err(|_| io::ErrorKind::InvalidData)?;
                    left = Left::Bytes(length);
                }
                "transfer-encoding" if text.eq_ignore_ascii_case("chunked") => {
                    left = Left::Chunk(0);
                }
                _ => {}
            }
        }
        Ok(Body { from, status, left })
    }

    /// The length of the next chunk.
    fn next_chunk(&mut self) -> io::Result<u64> {
        let mut line = head_line(&mut self.from)?;
        if line.is_empty() {
            // The end of the chunk before it.
            line = head_line(&mut self.from)?;
        }
        let digits = line.split(';').next().unwrap_or_default().trim();
        u64::from_str_radix(digits, 16).map_err(|_| io::ErrorKind::InvalidData.into())
    }
}

fn head_line(from: &mut BufReader<Box<dyn Read + Send>>) -> io::Result<String> {
    let mut line = Vec::new();
    from.take(MAX_HEAD).read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') => Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = match &mut self.left {
            Left::Open => u64::MAX,
            Left::Bytes(0) => return Ok(0),
            Left::Bytes(left) => *left,
            Left::Chunk(0) => {
                let length = self.next_chunk()?;
                if length == 0 {
                    self.left = Left::Bytes(0);
                    return Ok(0);
                }
                self.left = Left::Chunk(length);
                length
            }
            Left::Chunk(left) => *left,
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(into.len());
        let read = self.from.read(into.get_mut(..most).unwrap_or_default())?;
        match &mut self.left {
            Left::Open => {}
            Left::Bytes(_) | Left::Chunk(_) if read == 0 && most > 0 => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Left::Bytes(left) | Left::Chunk(left) => *left -= read as u64,
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out a byte at a time.
    struct Slow(io::Cursor<Vec<u8>>);

    impl Read for Slow {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let most = into.len().min(1);
            self.0.read(&mut into[..most])
        }
    }

    fn body(answer: &str) -> io::Result<(u16, String)> {
        let slow = Slow(io::Cursor::new(answer.as_bytes().to_vec()));
        let mut body = Body::begin(BufReader::new(slow))?;
        let mut text = String::new();
        body.read_to_string(&mut text)?;
        Ok((body.status, text))
    }

    #[test]
    fn bodies_of_every_kind_are_read() {
        for (answer, want) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd",
                (200, "abc"),
            ),
            ("HTTP/1.0 404 Not Found\r\n\r\nall", (404, "all")),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n",
                (200, "abc0123456789"),
            ),
        ] {
            let (status, text) = body(answer).unwrap();
            assert_eq!((status, text.as_str()), want);
        }
    }

    #[test]
    fn a_connection_that_breaks_is_no_end() {
        for answer in [
            "",
            "HTTP/1.1 200",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno\r\n",
            "nonsense\r\n\r\n",
        ] {
            assert!(body(answer).is_err(), "{answer}");
        }
    }

    #[test]
    fn refusals_are_one_line() {
        let status = br#"{"kind":"Status","message":"pods is forbidden\nreally"}"#;
        assert_eq!(reason(status, 403), "pods is forbidden");
        assert_eq!(reason(b"dial tcp: refused\n", 502), "dial tcp: refused");
        assert_eq!(reason(b"", 500), "HTTP status 500");
    }

    #[test]
    fn a_proxy_that_ends_is_told_with_its_words() {
        let options = ["--kubeconfig=/no/such".to_owned()];
        let error = Api::start(&options).err().unwrap();
        assert!(!error.contains('\n') && error.contains("ubectl"), "{error}");
    }
}
