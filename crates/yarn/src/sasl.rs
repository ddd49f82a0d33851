//! SASL DIGEST-MD5 (RFC 2831) as Hadoop uses it for tokens: who has the token answers a challenge, and sees that the server has it, too.
//! Pure. Only authentication is spoken (`qop=auth`): a cluster that asks for integrity or privacy of its RPC is refused with words.

use crate::hash::{hex, md5};
use crate::token::Token;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// An answer to a challenge.
pub(crate) struct Answer {
    /// What is sent.
    pub(crate) response: String,
    /// What a server that has the token answers.
    pub(crate) expected: String,
}

/// A value of a challenge: `key="value"` or `key=value`.
fn value(challenge: &str, key: &str) -> Option<String> {
    let mut rest = challenge;
    loop {
        let (name, after) = rest.split_once('=')?;
        let is_this = name.trim_start_matches([',', ' ']).trim() == key;
        let (found, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        if is_this {
            return Some(found.to_owned());
        }
        rest = next;
    }
}

/// Answers the challenge for a service. `random` has never been used before.
pub(crate) fn answer(
    challenge: &str,
    token: &Token,
    service: &str,
    random: &[u8],
) -> Result<Answer, String> {
    let realm = value(challenge, "realm").unwrap_or_default();
    let nonce = value(challenge, "nonce").ok_or("the server's challenge has no nonce")?;
    let offered = value(challenge, "qop").unwrap_or_else(|| "auth".to_owned());
    if !offered.split(',').any(|qop| qop.trim() == "auth") {
        return Err(format!(
            "the cluster asks for '{}' (hadoop.rpc.protection); only 'authentication' is spoken",
            offered.escape_debug()
        ));
    }
    let (user, password) = (
        STANDARD.encode(&token.identifier),
        STANDARD.encode(&token.password),
    );
    let (own, count) = (STANDARD.encode(random), "00000001");
    let mut first = md5(format!("{user}:{realm}:{password}").as_bytes()).to_vec();
    first.extend(format!(":{nonce}:{own}").bytes());
    let first = hex(&md5(&first));
    let digest = |second: String| {
        let second = hex(&md5(second.as_bytes()));
        hex(&md5(
            format!("{first}:{nonce}:{count}:{own}:auth:{second}").as_bytes()
        ))
    };
    let response = digest(format!("AUTHENTICATE:{service}"));
    Ok(Answer {
        response: format!(
            "charset=utf-8,username=\"{user}\",realm=\"{realm}\",nonce=\"{nonce}\",nc={count},cnonce=\"{own}\",\
             digest-uri=\"{service}\",maxbuf=65536,response={response},qop=auth"
        ),
        expected: format!("rspauth={}", digest(format!(":{service}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_answered_as_the_rfc_says() {
        // Computed apart from this code, with python's hashlib, by the formulas of RFC 2831.
        let token = Token {
            identifier: b"id".to_vec(),
            password: b"pw".to_vec(),
            kind: String::new(),
            service: String::new(),
        };
        let challenge =
            "realm=\"default\",nonce=\"bm9uY2U=\",qop=\"auth\",charset=utf-8,algorithm=md5-sess";
        let made = answer(challenge, &token, "/default", b"0123456789abcdef").unwrap();
        assert!(
            made.response
                .contains("response=0c40a3b58386c68b32be3e4f2b8f3a22,"),
            "{}",
            made.response
        );
        assert_eq!(made.expected, "rspauth=1585c3e36f4ae8a8fdab1063ee8729a6");
    }

    #[test]
    fn what_cannot_be_answered_is_said() {
        let token = Token {
            identifier: vec![],
            password: vec![],
            kind: String::new(),
            service: String::new(),
        };
        let error = |challenge: &str| answer(challenge, &token, "/default", b"x").err().unwrap();
        assert!(error("nonce=\"a\",qop=\"auth-conf\"").contains("auth-conf"));
        for text in ["", "=", "nonce", "qop=\"auth\"", "\"\"=\"", "nonce=\"a"] {
            assert!(error(text).contains("nonce"), "{text}");
        }
    }
}
