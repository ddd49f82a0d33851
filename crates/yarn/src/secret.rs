//! The secret that the processes of one application share, and proofs that somebody has it (HMAC-SHA256 of what the other side drew).

use crate::hash::{hex, sha256};
use std::io::Read as _;

const SIZE: usize = 32;
const BLOCK: usize = 64;

/// A secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SIZE]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// So many bytes that nobody can foresee.
pub fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Secret {
    /// A new one.
    pub fn new() -> std::io::Result<Secret> {
        random().map(Secret)
    }

    /// As text.
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }

    /// Reads it as text.
    pub fn from_hex(text: &str) -> Option<Secret> {
        let text = text.trim();
        let mut bytes = [0; SIZE];
        if text.len() != 2 * SIZE {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Secret(bytes))
    }

    /// Proves to who drew this that one has the secret.
    pub fn proof(&self, drawn: &str) -> String {
        let padded = |with: u8| {
            let mut block = [with; BLOCK];
            for (to, from) in block.iter_mut().zip(self.0) {
                *to ^= from;
            }
            block
        };
        let with = |block: [u8; BLOCK], message: &[u8]| sha256(&[&block[..], message].concat());
        let inner = with(padded(0x36), drawn.as_bytes());
        hex(&with(padded(0x5c), &inner))
    }

    /// Whether this proves it. Takes as long whatever is wrong.
    pub fn is_proof(&self, drawn: &str, proof: &str) -> bool {
        let wanted = self.proof(drawn);
        let differs = wanted
            .bytes()
            .zip(proof.bytes())
            .fold(0, |all, (a, b)| all | (a ^ b));
        wanted.len() == proof.len() && differs == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_an_hmac() {
        let secret = Secret([0x0b; SIZE]);
        // python: hmac.new(b"\x0b" * 32, b"Hi There", "sha256").hexdigest()
        let proof = "198a607eb44bfbc69903a0f1cf2bbdc5ba0aa3f3d9ae3c1c7a3b1696a0b68cf7";
        assert_eq!(secret.proof("Hi There"), proof);
        assert!(secret.is_proof("Hi There", proof));
        assert!(!secret.is_proof("Hi There", &proof[1..]) && !secret.is_proof("Hi there", proof));
    }

    #[test]
    fn it_reads_as_it_was_written() {
        let secret = Secret::new().unwrap();
        assert_eq!(
            Secret::from_hex(&format!("{}\n", secret.to_hex())),
            Some(secret.clone())
        );
        assert_ne!(Secret::new().unwrap(), secret);
        for text in ["", "xy", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(Secret::from_hex(text), None);
        }
    }
}
