//! Hadoop's RPC, version 9, over TCP: a connection is greeted, says by SASL who it is, and then calls one protocol, one call at a time.
//! A [`Client`] may know several servers, of which one is active: it goes on to the next when one is away or on standby.

use crate::pb::{Fields, Message, PbError, delimited};
use crate::sasl;
use crate::secret::random;
use crate::token::Token;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// Largest message that is read.
const MAX_MESSAGE: u32 = 16 << 20;
/// How long a server may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long it may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Numbers of calls that are none.
const SASL: i32 = -33;
const CONTEXT: i32 = -3;
/// Of a SASL message: what is said.
const NEGOTIATE: i64 = 1;
const INITIATE: i64 = 2;
const SUCCESS: i64 = 0;

/// Why a call gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The server cannot be reached, or the connection broke.
    #[error("{address}: {reason}")]
    Io {
        /// Which.
        address: String,
        /// Why.
        reason: String,
    },
    /// The server refused.
    #[error("{address}: {class}: {text}")]
    Remote {
        /// Which.
        address: String,
        /// The exception's name, without its package.
        class: String,
        /// Its first line.
        text: String,
    },
}

impl RpcError {
    /// Whether the server answered with this exception.
    pub fn is(&self, name: &str) -> bool {
        matches!(self, RpcError::Remote { class, .. } if class == name)
    }
}

/// Calls one protocol.
pub struct Client {
    protocol: &'static str,
    addresses: Vec<String>,
    at: usize,
    token: Token,
    connection: Option<Connection>,
}

struct Connection {
    stream: TcpStream,
    id: [u8; 16],
    call: i32,
}

/// What broke a connection.
enum Broken {
    Io(String),
    Remote(String, String),
}

impl From<io::Error> for Broken {
    fn from(e: io::Error) -> Broken {
        Broken::Io(match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("no answer within {} s", ANSWER_WITHIN.as_secs())
            }
            io::ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
            _ => e.to_string(),
        })
    }
}

impl From<PbError> for Broken {
    fn from(e: PbError) -> Broken {
        Broken::Io(e.to_string())
    }
}

impl Client {
    /// For servers of which one is active. Connects with the first call.
    pub fn new(protocol: &'static str, addresses: Vec<String>, token: Token) -> Client {
        Client {
            protocol,
            addresses,
            at: 0,
            token,
            connection: None,
        }
    }

    /// Takes another token, from the next connection on.
    pub fn renew(&mut self, token: Token) {
        self.token = token;
        self.connection = None;
    }

    /// Calls a method; the bytes of its answer. Every server is tried once, as long as one has not answered: so a call that is not to be
    /// made twice must be known by the server as the same.
    pub fn call(&mut self, method: &str, request: &Message) -> Result<Vec<u8>, RpcError> {
        let mut last = None;
        for _ in 0..self.addresses.len().max(1) {
            match self.call_once(method, request) {
                Err(e @ RpcError::Io { .. }) => last = Some(e),
                Err(e) if e.is("StandbyException") => last = Some(e),
                answered => return answered,
            }
            self.connection = None;
            self.at = (self.at + 1) % self.addresses.len().max(1);
        }
        Err(last.unwrap_or_else(|| RpcError::Io {
            address: String::new(),
            reason: "no server is known".to_owned(),
        }))
    }

    fn call_once(&mut self, method: &str, request: &Message) -> Result<Vec<u8>, RpcError> {
        let address = self.addresses.get(self.at).cloned().unwrap_or_default();
        let done = self.attempt(&address, method, request);
        done.map_err(|broken| match broken {
            Broken::Io(reason) => {
                self.connection = None;
                RpcError::Io { address, reason }
            }
            Broken::Remote(class, text) => {
                let class = class.rsplit(['.', '$']).next().unwrap_or_default();
                let text = text.lines().next().unwrap_or_default();
                RpcError::Remote {
                    address,
                    class: class.to_owned(),
                    text: text.to_owned(),
                }
            }
        })
    }

    fn attempt(
        &mut self,
        address: &str,
        method: &str,
        request: &Message,
    ) -> Result<Vec<u8>, Broken> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open(address, self.protocol, &self.token)?),
        };
        connection.call(self.protocol, method, request)
    }
}

impl Connection {
    fn open(address: &str, protocol: &str, token: &Token) -> Result<Connection, Broken> {
        let mut last = io::Error::other("the name has no address");
        let mut found = None;
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
                Ok(stream) => {
                    found = Some(stream);
                    break;
                }
                Err(e) => last = e,
            }
        }
        let stream = found.ok_or(last)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        let mut connection = Connection {
            stream,
            id: random()?,
            call: 0,
        };
        // Version 9, no service class, SASL.
        connection
            .stream
            .write_all(&[b'h', b'r', b'p', b'c', 9, 0, SASL.to_be_bytes()[3]])?;
        connection.authenticate(token)?;
        let context = Message::new().text(3, protocol);
        connection.send(CONTEXT, &[&context])?;
        Ok(connection)
    }

    fn authenticate(&mut self, token: &Token) -> Result<(), Broken> {
        let offer = self.sasl(&Message::new().int(2, NEGOTIATE))?;
        let offer = Fields::read(&offer)?;
        let mut way = None;
        for offered in offer.all(4) {
            let offered = Fields::read(offered)?;
            if offered.text(1) == "TOKEN" {
                way = Some(offered);
            }
        }
        let way = way.ok_or_else(|| Broken::Io("the server takes no tokens".to_owned()))?;
        let [method, mechanism, kind, server] = [1, 2, 3, 4].map(|field| way.text(field));
        let service = format!("{kind}/{server}");
        let answer = sasl::answer(&way.text(5), token, &service, &self.id).map_err(Broken::Io)?;
        let auth = Message::new()
            .text(1, &method)
            .text(2, &mechanism)
            .text(3, &kind)
            .text(4, &server);
        let said = Message::new()
            .int(2, INITIATE)
            .text(3, &answer.response)
            .message(4, &auth);
        let done = self.sasl(&said)?;
        let done = Fields::read(&done)?;
        match done.int(2) == SUCCESS && done.text(3) == answer.expected {
            true => Ok(()),
            false => Err(Broken::Io(
                "the server did not prove that it knows the token".to_owned(),
            )),
        }
    }

    fn sasl(&mut self, message: &Message) -> Result<Vec<u8>, Broken> {
        self.send(SASL, &[message])?;
        self.receive(None)
    }

    fn call(&mut self, protocol: &str, method: &str, request: &Message) -> Result<Vec<u8>, Broken> {
        let call = self.call;
        self.call = self.call.wrapping_add(1).max(0);
        let head = Message::new().text(1, method).text(2, protocol).int(3, 1);
        self.send(call, &[&head, request])?;
        self.receive(Some(call))
    }

    fn send(&mut self, call: i32, parts: &[&Message]) -> Result<(), Broken> {
        let is_sasl = call == SASL;
        let id: &[u8] = if is_sasl { &[] } else { &self.id };
        let retries = if call < 0 { -1 } else { 0 };
        let head = Message::new()
            .int(1, 2)
            .int(2, 0)
            .signed(3, call)
            .bytes(4, id)
            .signed(5, retries);
        let mut body = head.delimited();
        for part in parts {
            body.extend(part.delimited());
        }
        let length = u32::try_from(body.len())
            .map_err(|_| Broken::Io("the message is too long".to_owned()))?;
        let mut whole = length.to_be_bytes().to_vec();
        whole.extend(body);
        Ok(self.stream.write_all(&whole)?)
    }

    /// The answer to this call; answers to others that were given up are passed over.
    fn receive(&mut self, call: Option<i32>) -> Result<Vec<u8>, Broken> {
        loop {
            let mut length = [0; 4];
            self.stream.read_exact(&mut length)?;
            let length = u32::from_be_bytes(length);
            if length > MAX_MESSAGE {
                return Err(Broken::Io(format!(
                    "an answer of {length} bytes is too long"
                )));
            }
            let mut bytes = vec![0; length as usize];
            self.stream.read_exact(&mut bytes)?;
            let mut rest = bytes.as_slice();
            let head = Fields::read(delimited(&mut rest)?)?;
            if head.int(2) != SUCCESS {
                return Err(Broken::Remote(head.text(4), head.text(5)));
            }
            if call.is_some_and(|call| head.int(1) != i64::from(call)) {
                continue;
            }
            return Ok(match rest.is_empty() {
                true => Vec::new(),
                false => delimited(&mut rest)?.to_vec(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn token() -> Token {
        Token {
            identifier: vec![1],
            password: vec![2],
            kind: String::new(),
            service: String::new(),
        }
    }

    /// A server that answers the first message with these bytes and closes.
    fn answers(bytes: Vec<u8>) -> (String, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 11];
            stream.read_exact(&mut head).unwrap();
            assert_eq!(&head[..7], b"hrpc\x09\x00\xdf");
            stream.write_all(&bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // What was not read would make the other side's end another one.
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        (address, thread)
    }

    fn error(bytes: Vec<u8>) -> RpcError {
        let (address, thread) = answers(bytes);
        let mut client = Client::new("p", vec![address], token());
        let error = client.call("m", &Message::new()).unwrap_err();
        thread.join().unwrap();
        error
    }

    #[test]
    fn a_refusal_is_told_by_its_name_and_first_line() {
        let head = Message::new()
            .int(1, 0)
            .int(2, 2)
            .text(
                4,
                "org.apache.hadoop.security.token.SecretManager$InvalidToken",
            )
            .text(5, "no such token\n\tat x");
        let mut bytes = (head.delimited().len() as u32).to_be_bytes().to_vec();
        bytes.extend(head.delimited());
        let error = error(bytes);
        assert!(error.is("InvalidToken"), "{error}");
        assert!(error.to_string().ends_with("InvalidToken: no such token"));
    }

    #[test]
    fn a_server_that_speaks_otherwise_is_an_error_and_costs_no_memory() {
        assert!(
            error(b"HTTP/1.1 404 Not Found\r\n".to_vec())
                .to_string()
                .contains("too long")
        );
        assert!(error(vec![0, 0, 0, 9, 1]).to_string().contains("closed"));
        assert!(
            error(vec![0, 0, 0, 1, 0xff])
                .to_string()
                .contains("malformed")
        );
        assert!(error(vec![]).to_string().contains("closed"));
    }

    #[test]
    fn the_next_server_is_asked_when_one_is_away() {
        let gone = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string();
        let head = Message::new().int(1, 0).int(2, 2).text(4, "x.Refused");
        let mut bytes = (head.delimited().len() as u32).to_be_bytes().to_vec();
        bytes.extend(head.delimited());
        let (there, thread) = answers(bytes);
        let mut client = Client::new("p", vec![gone, there], token());
        assert!(client.call("m", &Message::new()).unwrap_err().is("Refused"));
        thread.join().unwrap();
    }
}
