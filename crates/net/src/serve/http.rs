//! A small HTTP/1.1 server for pages and figures about a task: it answers GET and HEAD from memory
//! and nothing else. Whoever connects may send anything, slowly or in masses: every size, number
//! and wait is bounded, and what is not understood is refused and the connection closed.

use crate::Listener;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Bytes of a request's line and headers.
const MAX_HEAD: usize = 16 << 10;
/// Connections at once; more wait until one ends.
const MAX_CONNECTIONS: usize = 256;
/// How long a request may take to arrive; also how long a connection may rest between two.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long an answer may take to leave.
const SENDING: Duration = Duration::from_secs(30);

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpRequest {
    /// `/a/b`, as it came: not decoded.
    pub path: String,
    /// What follows the `?`.
    pub query: String,
    /// Names in lower case, values without the space around them.
    headers: Vec<(String, String)>,
    is_head: bool,
    keeps_open: bool,
}

impl HttpRequest {
    /// A request for `target`, for tests of those who answer.
    pub fn get(target: &str, headers: &[(&str, &str)]) -> HttpRequest {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let header = |(name, value): &(&str, &str)| (name.to_lowercase(), (*value).to_owned());
        HttpRequest {
            path: path.to_owned(),
            query: query.to_owned(),
            headers: headers.iter().map(header).collect(),
            is_head: false,
            keeps_open: true,
        }
    }

    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The value of a parameter of the query, as it came.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let mut pairs = self.query.split('&').filter_map(|p| p.split_once('='));
        pairs.find(|(n, _)| *n == name).map(|(_, value)| value)
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// As in 200.
    pub status: u16,
    /// `Content-Type`.
    pub kind: &'static str,
    /// Further headers. Values must not hold line ends.
    pub headers: Vec<(&'static str, String)>,
    /// The content.
    pub body: Bytes,
}

impl HttpAnswer {
    /// An answer with content.
    pub fn new(status: u16, kind: &'static str, body: impl Into<Bytes>) -> HttpAnswer {
        HttpAnswer {
            status,
            kind,
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// A line of text.
    pub fn text(status: u16, text: &str) -> HttpAnswer {
        let line = format!("{text}\n");
        HttpAnswer::new(status, "text/plain; charset=utf-8", line)
    }

    fn head(&self, keeps_open: bool) -> String {
        let mut head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: {}\r\n",
            self.status,
            phrase(self.status),
            self.kind,
            self.body.len(),
            if keeps_open { "keep-alive" } else { "close" },
        );
        for (name, value) in &self.headers {
            // One that holds a line end would begin another header.
            if !value.contains(['\r', '\n']) {
                head += &format!("{name}: {value}\r\n");
            }
        }
        head + "\r\n"
    }
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        303 => "See Other",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Other",
    }
}

/// Answers requests.
pub type HttpHandler = Arc<dyn Fn(&HttpRequest) -> HttpAnswer + Send + Sync>;

/// Serves until dropped.
pub async fn serve_http(listener: Listener, handler: HttpHandler) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    let mut incoming = listener.incoming();
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else {
            return;
        };
        let socket = incoming.accept().await;
        let handler = handler.clone();
        connections.spawn(async move {
            // Whoever is gone needs no answer.
            let _ = converse(socket, handler).await;
            drop(permit);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(socket: TcpStream, handler: HttpHandler) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut arrived = Vec::new();
    loop {
        let request = tokio::time::timeout(PATIENCE, next_request(&socket, &mut arrived)).await;
        let (answer, is_head, keeps_open) = match request {
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(Ok(request)))) => {
                let answer = handler(&request);
                (answer, request.is_head, request.keeps_open)
            }
            Ok(Ok(Some(Err((status, text))))) => (HttpAnswer::text(status, text), false, false),
            Ok(Err(e)) => return Err(e),
            // A connection at rest is simply closed.
            Err(_) if arrived.is_empty() => return Ok(()),
            Err(_) => (
                HttpAnswer::text(408, "the request takes too long"),
                false,
                false,
            ),
        };
        let mut message = answer.head(keeps_open).into_bytes();
        if !is_head {
            message.extend_from_slice(&answer.body);
        }
        tokio::time::timeout(SENDING, write_all(&socket, &message)).await??;
        if !keeps_open {
            return close(socket).await;
        }
    }
}

/// Ends a connection so that the other side gets the answer: what it still sends is taken for a
/// moment, because a socket that is closed on unread bytes takes back what it sent.
async fn close(socket: TcpStream) -> io::Result<()> {
    /// How long and how much is taken.
    const LAST: (Duration, usize) = (Duration::from_secs(1), 1 << 20);
    let socket = socket.into_std()?;
    socket.shutdown(std::net::Shutdown::Write)?;
    let socket = TcpStream::from_std(socket)?;
    let rest = async {
        let mut taken = 0;
        let mut piece = [0; 4096];
        while taken < LAST.1 {
            socket.readable().await?;
            match socket.try_read(&mut piece) {
                Ok(0) => break,
                Ok(n) => taken += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    };
    tokio::time::timeout(LAST.0, rest).await.unwrap_or(Ok(()))
}

/// The next request, or what to say to what is none; `None` when the other side is done.
async fn next_request(
    socket: &TcpStream,
    arrived: &mut Vec<u8>,
) -> io::Result<Option<Result<HttpRequest, (u16, &'static str)>>> {
    loop {
        if let Some(end) = arrived.windows(4).position(|w| w == b"\r\n\r\n") {
            let head: Vec<u8> = arrived.drain(..end + 4).collect();
            return Ok(Some(parse(&head[..end])));
        }
        if arrived.len() >= MAX_HEAD {
            return Ok(Some(Err((431, "the request is too long"))));
        }
        socket.readable().await?;
        let mut piece = [0; 4096];
        match socket.try_read(&mut piece) {
            Ok(0) => return Ok(None),
            Ok(n) => arrived.extend_from_slice(piece.get(..n).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
}

/// Reads a request's line and headers.
fn parse(head: &[u8]) -> Result<HttpRequest, (u16, &'static str)> {
    const BAD: (u16, &str) = (400, "this is no HTTP request");
    let head = std::str::from_utf8(head).map_err(|_| BAD)?;
    let mut lines = head.split("\r\n");
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = words[..] else {
        return Err(BAD);
    };
    if !matches!(version, "HTTP/1.1" | "HTTP/1.0") || !target.starts_with('/') {
        return Err(BAD);
    }
    if target.chars().any(char::is_control) {
        return Err(BAD);
    }
    let mut headers = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(BAD)?;
        let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if name.is_empty() || !name.chars().all(is_token) || value.contains(['\r', '\n', '\0']) {
            return Err(BAD);
        }
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let count = |name: &str| headers.iter().filter(|(n, _)| n == name).count();
    // Two hosts are how one server is made to believe another's answer.
    if count("host") > 1 || version == "HTTP/1.1" && count("host") == 0 {
        return Err((400, "a request names one host"));
    }
    let has_body = headers.iter().any(|(name, value)| match name.as_str() {
        "content-length" => value != "0",
        "transfer-encoding" => true,
        _ => false,
    });
    if !matches!(method, "GET" | "HEAD") {
        return Err((405, "only GET and HEAD are answered"));
    }
    if has_body {
        return Err((400, "a request has no content here"));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let wishes = headers.iter().find(|(n, _)| n == "connection");
    let keeps_open = match wishes.map(|(_, value)| value.to_ascii_lowercase()) {
        Some(wish) => wish.contains("keep-alive") || version == "HTTP/1.1" && wish != "close",
        None => version == "HTTP/1.1",
    };
    Ok(HttpRequest {
        path: path.to_owned(),
        query: query.to_owned(),
        is_head: method == "HEAD",
        headers,
        keeps_open,
    })
}

/// Sends all of these bytes.
pub(crate) async fn write_all(socket: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// What comes back for these bytes, until the connection ends.
    async fn talk(bytes: &[u8]) -> String {
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.address();
        let handler: HttpHandler = Arc::new(|request| {
            let text = format!(
                "{} {} {:?}",
                request.path,
                request.query,
                request.header("x")
            );
            let mut answer = HttpAnswer::text(200, &text);
            answer.headers.push(("X-Bad", "a\r\nSet-Cookie: b".into()));
            answer
        });
        let server = tokio::spawn(serve_http(listener, handler));
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).await.unwrap();
        server.abort();
        text
    }

    #[tokio::test]
    async fn requests_on_one_connection_are_answered_in_order() {
        let text = talk(
            b"GET /a?b=c HTTP/1.1\r\nHost: h\r\nX: 1\r\n\r\nHEAD /d HTTP/1.1\r\nHost: h\r\n\r\n\
              GET /e HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        )
        .await;
        assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 3, "{text}");
        assert!(text.contains("/a b=c Some(\"1\")\n"), "{text}");
        assert!(!text.contains("/d"), "{text}");
        assert!(text.ends_with("/e  None\n"), "{text}");
        assert!(!text.contains("Set-Cookie"), "{text}");
    }

    #[tokio::test]
    async fn what_is_not_understood_is_refused_and_the_connection_closed() {
        let long = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(MAX_HEAD));
        for (bytes, status) in [
            (&b"hello\r\n\r\n"[..], "400"),
            (b"GET / HTTP/2\r\nHost: h\r\n\r\n", "400"),
            (b"GET http://a/ HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
            (b"GET / HTTP/1.1\r\n\r\n", "400"),
            (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"),
            (b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", "400"),
            (
                b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde",
                "400",
            ),
            (b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n", "400"),
            (
                b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx",
                "405",
            ),
            (long.as_bytes(), "431"),
        ] {
            let text = talk(bytes).await;
            let start = format!("HTTP/1.1 {status} ");
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
            assert!(text.starts_with(&start), "{shown:?} gave {text:?}");
        }
    }

    #[test]
    fn parameters_are_found_by_their_names() {
        let request = HttpRequest::get("/x?a=1&b=&ab=2", &[("Host", "h")]);
        assert_eq!(request.parameter("a"), Some("1"));
        assert_eq!(request.parameter("b"), Some(""));
        assert_eq!(request.parameter("c"), None);
        assert_eq!(request.header("host"), Some("h"));
    }
}
