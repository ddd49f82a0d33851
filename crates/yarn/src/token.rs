//! Tokens: how YARN says who a process is. They come in a file whose path is in `HADOOP_TOKEN_FILE_LOCATION`, in one of two forms, and are
//! handed to containers in the older one, which every Hadoop reads.

#[cfg(test)]
use crate::pb::Message;
use crate::pb::{Fields, PbError, delimited};

/// Most tokens of a file.
const MAX_TOKENS: i64 = 4096;
const MAGIC: &[u8; 4] = b"HDTS";
/// The token by which an ApplicationMaster speaks to its ResourceManager.
const AM_RM: &str = "YARN_AM_RM_TOKEN";

/// One token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Whom it names, in the form of its kind.
    pub identifier: Vec<u8>,
    /// What proves it.
    pub password: Vec<u8>,
    /// What it is for.
    pub kind: String,
    /// Where it counts: an address, or nothing.
    pub service: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Its password is a secret.
        write!(f, "Token({} for '{}')", self.kind, self.service)
    }
}

/// What is wrong with a file of tokens.
#[derive(Debug, thiserror::Error)]
#[error("the file of tokens is malformed: {0}")]
pub struct TokenError(&'static str);

impl From<PbError> for TokenError {
    fn from(e: PbError) -> TokenError {
        TokenError(e.0)
    }
}

impl Token {
    /// As messages carry it.
    pub(crate) fn read(bytes: &[u8]) -> Result<Token, PbError> {
        let read = Fields::read(bytes)?;
        Ok(Token {
            identifier: read.bytes(1).to_vec(),
            password: read.bytes(2).to_vec(),
            kind: read.text(3),
            service: read.text(4),
        })
    }

    #[cfg(test)]
    pub(crate) fn message(&self) -> Message {
        Message::new()
            .bytes(1, &self.identifier)
            .bytes(2, &self.password)
            .text(3, &self.kind)
            .text(4, &self.service)
    }
}

/// The tokens of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials(Vec<Token>);

impl Credentials {
    /// Reads a file of tokens.
    pub fn read(bytes: &[u8]) -> Result<Credentials, TokenError> {
        let rest = bytes
            .strip_prefix(MAGIC)
            .ok_or(TokenError("it does not begin with HDTS"))?;
        let (version, mut rest) = rest.split_first().ok_or(TokenError("it ends too soon"))?;
        match version {
            0 => Credentials::writable(&mut rest),
            1 => {
                let all = Fields::read(delimited(&mut rest)?)?;
                let tokens = all
                    .all(1)
                    .map(|entry| Token::read(Fields::read(entry)?.bytes(2)));
                Ok(Credentials(tokens.collect::<Result<_, _>>()?))
            }
            _ => Err(TokenError("it is of an unknown version")),
        }
    }

    fn writable(from: &mut &[u8]) -> Result<Credentials, TokenError> {
        let count = vlong(from)?;
        if !(0..=MAX_TOKENS).contains(&count) {
            return Err(TokenError("it has too many tokens"));
        }
        let mut tokens = Vec::new();
        for _ in 0..count {
            let _alias = vbytes(from)?;
            let (identifier, password) = (vbytes(from)?.to_vec(), vbytes(from)?.to_vec());
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (kind, service) = (text(vbytes(from)?), text(vbytes(from)?));
            tokens.push(Token {
                identifier,
                password,
                kind,
                service,
            });
        }
        Ok(Credentials(tokens))
    }

    /// The token by which an ApplicationMaster speaks to its ResourceManager.
    pub fn am_rm(&self) -> Option<&Token> {
        self.0.iter().find(|token| token.kind == AM_RM)
    }

    /// The others: what containers may need, as tokens for HDFS. The ApplicationMaster's own is not theirs.
    #[must_use]
    pub fn for_containers(&self) -> Credentials {
        Credentials(
            self.0
                .iter()
                .filter(|token| token.kind != AM_RM)
                .cloned()
                .collect(),
        )
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a file of tokens.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = MAGIC.to_vec();
        to.push(0);
        put_vlong(&mut to, self.0.len());
        for token in &self.0 {
            let service = token.service.as_bytes();
            for part in [
                service,
                &token.identifier,
                &token.password,
                token.kind.as_bytes(),
                service,
            ] {
                put_vlong(&mut to, part.len());
                to.extend_from_slice(part);
            }
        }
        // No secret keys.
        to.push(0);
        to
    }
}

/// A number as Hadoop's `WritableUtils` writes it.
fn vlong(from: &mut &[u8]) -> Result<i64, TokenError> {
    let short = TokenError("it ends in a number");
    let Some((first, rest)) = from.split_first() else {
        return Err(short);
    };
    *from = rest;
    let first = i32::from(first.cast_signed());
    if first >= -112 {
        return Ok(i64::from(first));
    }
    let (is_negative, count) = match first < -120 {
        true => (true, -120 - first),
        false => (false, -112 - first),
    };
    let mut value = 0i64;
    for _ in 0..count {
        let (next, rest) = from
            .split_first()
            .ok_or(TokenError("it ends in a number"))?;
        *from = rest;
        value = value << 8 | i64::from(*next);
    }
    Ok(if is_negative { !value } else { value })
}

fn vbytes<'a>(from: &mut &'a [u8]) -> Result<&'a [u8], TokenError> {
    let length = usize::try_from(vlong(from)?).map_err(|_| TokenError("a length is negative"))?;
    let (head, rest) = from
        .split_at_checked(length)
        .ok_or(TokenError("it ends in a token"))?;
    *from = rest;
    Ok(head)
}

fn put_vlong(to: &mut Vec<u8>, value: usize) {
    if value <= 127 {
        to.push(value as u8);
        return;
    }
    let bytes = (value as u64).to_be_bytes();
    let bytes: Vec<u8> = bytes.into_iter().skip_while(|b| *b == 0).collect();
    // -113 is one byte, -114 two, and so on.
    to.push((-112 - bytes.len() as i32) as u8);
    to.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(kind: &str, size: usize) -> Token {
        Token {
            identifier: vec![7; size],
            password: b"secret".to_vec(),
            kind: kind.to_owned(),
            service: "10.0.0.1:8030".to_owned(),
        }
    }

    #[test]
    fn both_forms_are_read_and_the_older_is_written() {
        let tokens = vec![
            token(AM_RM, 5),
            token("HDFS_DELEGATION_TOKEN", 200),
            token("x", 70_000),
        ];
        let old = Credentials(tokens.clone()).to_bytes();
        assert_eq!(
            Credentials::read(&old).unwrap(),
            Credentials(tokens.clone())
        );
        let mut all = Message::new();
        for token in &tokens {
            all = all.message(
                1,
                &Message::new().text(1, "alias").message(2, &token.message()),
            );
        }
        let mut new = b"HDTS\x01".to_vec();
        new.extend(all.delimited());
        let read = Credentials::read(&new).unwrap();
        assert_eq!(read, Credentials(tokens));
        assert_eq!(read.am_rm().map(|t| t.identifier.len()), Some(5));
        assert_eq!(read.for_containers().0.len(), 2);
        assert!(!format!("{read:?}").contains("secret"));
    }

    #[test]
    fn malformed_files_are_errors() {
        let whole = Credentials(vec![token("k", 300)]).to_bytes();
        for end in 0..whole.len() - 1 {
            assert!(Credentials::read(&whole[..end]).is_err(), "{end}");
        }
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0x80, 0x88, 0x8f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                let _ = Credentials::read(&changed);
            }
        }
        assert!(Credentials::read(b"HDTS\x02").is_err());
    }
}
