//! As much of HTTP/1.1 as Hadoop's REST needs: one request on a connection of its own, an answer with a longest length. Plain HTTP only.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// Longest answer that is read.
const MAX_ANSWER: u64 = 8 << 20;
/// Longest line of a head, and most lines.
const MAX_LINE: u64 = 16 << 10;
const MAX_LINES: usize = 200;
/// How long a server may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(4);
/// How long it may be silent.
const SILENT_FOR: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url}: {reason}")]
pub struct HttpError {
    /// What was asked.
    pub url: String,
    /// Why.
    pub reason: String,
}

/// What is sent with a request.
pub(crate) enum Body<'a> {
    /// Nothing.
    None,
    /// JSON.
    Json(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// A file.
    File(&'a File),
}

/// What came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// What Hadoop says of an error, or the status.
    pub(crate) fn reason(&self) -> String {
        let said: Option<serde_json::Value> = serde_json::from_slice(&self.body).ok();
        let said = said
            .as_ref()
            .and_then(|v| v["RemoteException"]["message"].as_str());
        match said.and_then(|text| text.lines().next()) {
            Some(text) => text
                .chars()
                .take(500)
                .collect::<String>()
                .escape_debug()
                .to_string(),
            None => match self.status {
                401 => "status 401: the cluster wants Kerberos (SPNEGO), which is not spoken"
                    .to_owned(),
                status => format!("status {status}"),
            },
        }
    }
}

/// Host and port, and the rest.
pub(crate) fn split(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("http://")?;
    let at = rest.find('/').unwrap_or(rest.len());
    let (host, path) = rest.split_at(at);
    let is_clean = !url.contains(|c: char| c.is_whitespace() || c.is_control());
    (is_clean && !host.is_empty()).then_some((host, path))
}

/// What may stand in a URL as it is; the rest is escaped.
pub(crate) fn escaped(text: &str, also: &str) -> String {
    let mut made = String::new();
    for byte in text.bytes() {
        let c = char::from(byte);
        match c.is_ascii_alphanumeric() || "-._~".contains(c) || also.contains(c) {
            true => made.push(c),
            false => made.push_str(&format!("%{byte:02X}")),
        }
    }
    made
}

/// Asks.
pub(crate) fn ask(method: &str, url: &str, body: &Body<'_>) -> Result<Answer, HttpError> {
    attempt(method, url, body).map_err(|e| HttpError {
        // A query may be long, and says nothing more.
        url: url.split('?').next().unwrap_or_default().to_owned(),
        reason: match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer in time".to_owned(),
            io::ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
            _ => e.to_string(),
        },
    })
}

fn attempt(method: &str, url: &str, body: &Body<'_>) -> io::Result<Answer> {
    let wrong = "not a URL of plain HTTP, like http://host:8088";
    let (host, path) = split(url).ok_or_else(|| io::Error::other(wrong))?;
    let named = match host.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
        _ => format!("{host}:80"),
    };
    let mut last = io::Error::other("the name has no address");
    let mut stream = None;
    for address in named.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
            Ok(found) => {
                stream = Some(found);
                break;
            }
            Err(e) => last = e,
        }
    }
    let mut stream = stream.ok_or(last)?;
    stream.set_read_timeout(Some(SILENT_FOR))?;
    stream.set_write_timeout(Some(SILENT_FOR))?;
    let path = if path.is_empty() { "/" } else { path };
    let (kind, length) = match body {
        Body::None => ("", 0),
        Body::Json(text) => ("Content-Type: application/json\r\n", text.len() as u64),
        Body::Bytes(bytes) => (
            "Content-Type: application/octet-stream\r\n",
            bytes.len() as u64,
        ),
        Body::File(file) => (
            "Content-Type: application/octet-stream\r\n",
            file.metadata()?.len(),
        ),
    };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\n{kind}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    match body {
        Body::None => {}
        Body::Json(text) => stream.write_all(text.as_bytes())?,
        Body::Bytes(bytes) => stream.write_all(bytes)?,
        Body::File(file) => {
            let sent = io::copy(&mut file.take(length), &mut stream)?;
            if sent != length {
                return Err(io::Error::other("the file changed while it was sent"));
            }
        }
    }
    read(BufReader::new(stream))
}

fn line(from: &mut impl io::BufRead) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(MAX_LINE).read_until(b'\n', &mut bytes)?;
    match bytes.last() {
        Some(b'\n') => Ok(String::from_utf8_lossy(bytes.trim_ascii()).into_owned()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn read(mut from: BufReader<impl Read>) -> io::Result<Answer> {
    let malformed = || io::Error::other("the answer is no HTTP");
    loop {
        let first = line(&mut from)?;
        let status = first
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.split(' ').nth(1));
        let status: u16 = status.and_then(|s| s.parse().ok()).ok_or_else(malformed)?;
        let (mut length, mut is_chunked, mut location) = (None, false, None);
        let mut lines = 0;
        loop {
            let header = line(&mut from)?;
            if header.is_empty() {
                break;
            }
            lines += 1;
            let (name, value) = header.split_once(':').ok_or_else(malformed)?;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = Some(value.parse::<u64>().map_err(|_| malformed())?),
                "transfer-encoding" => is_chunked = value.eq_ignore_ascii_case("chunked"),
                "location" => location = Some(value.to_owned()),
                _ => {}
            }
            if lines > MAX_LINES {
                return Err(malformed());
            }
        }
        if status == 100 {
            continue;
        }
        let body = match (is_chunked, length) {
            (true, _) => chunks(&mut from)?,
            (false, Some(length)) => exactly(&mut from, length)?,
            (false, None) => {
                let mut body = Vec::new();
                (&mut from).take(MAX_ANSWER).read_to_end(&mut body)?;
                body
            }
        };
        return Ok(Answer {
            status,
            location,
            body,
        });
    }
}

fn exactly(from: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    if length > MAX_ANSWER {
        return Err(io::Error::other(format!(
            "an answer of {length} bytes is too long"
        )));
    }
    let mut body = Vec::new();
    from.take(length).read_to_end(&mut body)?;
    match body.len() as u64 == length {
        true => Ok(body),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn chunks(from: &mut impl io::BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = line(from)?;
        let size = size.split(';').next().unwrap_or_default().trim();
        let size =
            u64::from_str_radix(size, 16).map_err(|_| io::Error::other("a chunk has no size"))?;
        if size == 0 {
            return Ok(body);
        }
        let room = MAX_ANSWER.saturating_sub(body.len() as u64);
        if size > room {
            return Err(io::Error::other("the answer is too long"));
        }
        body.extend(exactly(from, size)?);
        line(from)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> io::Result<Answer> {
        read(BufReader::new(text.as_bytes()))
    }

    #[test]
    fn answers_of_all_forms_are_read() {
        let plain = answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhixx").unwrap();
        assert_eq!(
            (plain.status, plain.body.as_slice()),
            (200, b"hi".as_slice())
        );
        let chunked = answer(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1;x\r\n!\r\n0\r\n\r\n",
        )
        .unwrap();
        assert_eq!(chunked.body, b"hi!");
        let open = answer(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 307 Away\r\nLocation: http://b/\r\n\r\nrest",
        )
        .unwrap();
        assert_eq!(
            (open.status, open.location.as_deref(), open.body.as_slice()),
            (307, Some("http://b/"), b"rest".as_slice())
        );
    }

    #[test]
    fn what_is_no_answer_is_an_error_and_costs_no_memory() {
        for text in [
            "",
            "hello\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        ] {
            assert!(answer(text).is_err(), "{text}");
        }
    }

    #[test]
    fn errors_of_hadoop_are_told_in_its_words() {
        let text = r#"{"RemoteException":{"exception":"X","message":"no such queue\nat a"}}"#;
        let made = Answer {
            status: 400,
            location: None,
            body: text.into(),
        };
        assert_eq!(made.reason(), "no such queue");
        let made = Answer {
            status: 401,
            location: None,
            body: b"<html>".into(),
        };
        assert!(made.reason().contains("Kerberos"));
    }

    #[test]
    fn urls_cannot_smuggle_lines() {
        assert_eq!(split("http://a:1/b?c"), Some(("a:1", "/b?c")));
        for url in [
            "https://a/",
            "http:///x",
            "a:1",
            "http://a/b\r\nX: y",
            "http://a b/",
        ] {
            assert_eq!(split(url), None, "{url}");
        }
        assert_eq!(escaped("/a b/é&", "/"), "/a%20b/%C3%A9%26");
    }
}
