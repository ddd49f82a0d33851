//! The first words on a connection to the ApplicationMaster: both sides prove that they have the application's secret, and the one that
//! connects says who it is. Nothing else is read before.

use downpour_yarn::{Secret, random};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read as _, Write};

const GREETING: &str = "downpour-yarn 1 ";
/// Longest line.
const MAX_LINE: u64 = 1024;

/// Who connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Peer {
    /// What runs in this container.
    Agent(String),
    /// A launcher that wants to read the log from this byte on.
    Launcher(u64),
}

#[derive(Serialize, Deserialize)]
struct Hello {
    peer: Peer,
    drawn: String,
    proof: String,
}

fn refused(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text.to_owned())
}

fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    from.take(MAX_LINE).read_line(&mut text)?;
    match text.strip_suffix('\n') {
        Some(line) => Ok(line.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn draw() -> io::Result<String> {
    let bytes: [u8; 16] = random()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn said(drawn: &str, peer: &Peer) -> String {
    let peer = serde_json::to_string(peer).unwrap_or_default();
    format!("peer {drawn} {peer}")
}

/// Hears who connects.
pub(super) fn accept(
    secret: &Secret,
    from: &mut impl BufRead,
    to: &mut impl Write,
) -> io::Result<Peer> {
    let drawn = draw()?;
    writeln!(to, "{GREETING}{drawn}")?;
    to.flush()?;
    let hello: Hello = serde_json::from_str(&line(from)?)
        .map_err(|_| refused("no greeting of a task or launcher"))?;
    if !secret.is_proof(&said(&drawn, &hello.peer), &hello.proof) {
        return Err(refused("it does not have this application's secret"));
    }
    writeln!(to, "{}", secret.proof(&format!("master {}", hello.drawn)))?;
    to.flush()?;
    Ok(hello.peer)
}

/// Says who connects.
pub(super) fn introduce(
    secret: &Secret,
    peer: &Peer,
    from: &mut impl BufRead,
    to: &mut impl Write,
) -> io::Result<()> {
    let greeting = line(from)?;
    let theirs = greeting
        .strip_prefix(GREETING)
        .ok_or_else(|| refused("no ApplicationMaster of downpour listens there"))?;
    let drawn = draw()?;
    let hello = Hello {
        peer: peer.clone(),
        proof: secret.proof(&said(theirs, peer)),
        drawn: drawn.clone(),
    };
    let text = serde_json::to_string(&hello).map_err(io::Error::other)?;
    to.write_all(format!("{text}\n").as_bytes())?;
    to.flush()?;
    match secret.is_proof(&format!("master {drawn}"), &line(from)?) {
        true => Ok(()),
        false => Err(refused(
            "what listens there is not this application's ApplicationMaster",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;
    use std::os::unix::net::UnixStream;

    fn meet(ours: &Secret, theirs: &Secret) -> (io::Result<()>, io::Result<Peer>) {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let theirs = theirs.clone();
        let accepting = std::thread::spawn(move || {
            let mut from = BufReader::new(b.try_clone().unwrap());
            accept(&theirs, &mut from, &mut b)
        });
        let mut from = BufReader::new(a.try_clone().unwrap());
        let peer = Peer::Agent("container_1".to_owned());
        let introduced = introduce(ours, &peer, &mut from, &mut a);
        drop((a, from));
        (introduced, accepting.join().unwrap())
    }

    #[test]
    fn who_has_the_secret_is_let_in() {
        let (secret, other) = (Secret::new().unwrap(), Secret::new().unwrap());
        let (introduced, accepted) = meet(&secret, &secret);
        introduced.unwrap();
        assert_eq!(accepted.unwrap(), Peer::Agent("container_1".to_owned()));
        let (introduced, accepted) = meet(&secret, &other);
        assert!(introduced.is_err() && accepted.unwrap_err().to_string().contains("secret"));
    }

    #[test]
    fn other_first_words_are_refused() {
        let secret = Secret::new().unwrap();
        for text in ["", "GET / HTTP/1.1\r\n\r\n", "{}\n", &"x".repeat(5000)] {
            assert!(
                accept(&secret, &mut text.as_bytes(), &mut Vec::new()).is_err(),
                "{text}"
            );
            let peer = Peer::Launcher(0);
            assert!(introduce(&secret, &peer, &mut text.as_bytes(), &mut Vec::new()).is_err());
        }
    }
}
