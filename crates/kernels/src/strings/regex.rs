//! `RegexFullMatch`, `RegexReplace` and their static forms.

use super::pattern::translate;
use super::{map, scalar};
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::Tensor;
use parking_lot::Mutex;
use regex::bytes::{Captures, Regex, RegexBuilder};
use std::sync::Arc;

/// Most memory one compiled pattern may take, near RE2's default of 8 MiB.
const SIZE_LIMIT: usize = 10 << 20;

pub(super) fn register(r: &mut Registry) {
    r.add("RegexFullMatch", |_| {
        let cache = Cache::default();
        Built::costly(move |ctx| {
            let pattern = pattern_input(ctx)?;
            let regex = cache.get(&pattern, full)?;
            full_match(ctx, &regex)
        })
    });
    r.add("StaticRegexFullMatch", |b| {
        let regex = full(b.attrs().bytes("pattern")?)?;
        Built::costly(move |ctx| full_match(ctx, &regex))
    });
    r.add("RegexReplace", regex_replace);
    r.add("StaticRegexReplace", |b| {
        let regex = partial(b.attrs().bytes("pattern")?)?;
        let rewrite = b.attrs().bytes("rewrite")?.clone();
        let global = b.attrs().bool("replace_global")?;
        Built::costly(move |ctx| map(ctx, |s| Ok(replace(&regex, s, &rewrite, global))))
    });
}

/// The last pattern and what it was compiled to: it seldom changes between steps.
#[derive(Default)]
struct Cache(Mutex<Option<(Bytes, Arc<Regex>)>>);

impl Cache {
    fn get(&self, pattern: &Bytes, make: fn(&Bytes) -> Result<Regex>) -> Result<Arc<Regex>> {
        if let Some((known, regex)) = &*self.0.lock()
            && known == pattern
        {
            return Ok(regex.clone());
        }
        let regex = Arc::new(make(pattern)?);
        *self.0.lock() = Some((pattern.clone(), regex.clone()));
        Ok(regex)
    }
}

fn full(pattern: &Bytes) -> Result<Regex> {
    compile(pattern, |p| format!("\\A(?:{p})\\z"))
}

fn partial(pattern: &Bytes) -> Result<Regex> {
    compile(pattern, |p| p)
}

fn compile(pattern: &Bytes, frame: fn(String) -> String) -> Result<Regex> {
    let bad = |why: &str| {
        let pattern = String::from_utf8_lossy(pattern);
        Status::invalid_argument(format!("Invalid pattern: {pattern}, error: {why}"))
    };
    let text = std::str::from_utf8(pattern).map_err(|_| bad("invalid UTF-8"))?;
    let translated = translate(text).map_err(|e| bad(&e))?;
    RegexBuilder::new(&frame(translated))
        .size_limit(SIZE_LIMIT)
        .build()
        .map_err(|e| match e {
            regex::Error::CompiledTooBig(_) => bad("pattern too large - compile failed"),
            other => bad(&other.to_string()),
        })
}

fn pattern_input(ctx: &OpContext<'_>) -> Result<Bytes> {
    scalar(ctx, 1)?
        .cloned()
        .ok_or_else(|| not_scalar(ctx, 1, "Pattern"))
}

fn not_scalar(ctx: &OpContext<'_>, i: usize, name: &str) -> Status {
    let shape = ctx.input(i).map(|t| t.shape().clone()).unwrap_or_default();
    Status::invalid_argument(format!("{name} must be scalar, but received {shape}"))
}

fn full_match(ctx: &mut OpContext<'_>, regex: &Regex) -> Result<()> {
    let input = ctx.input(0)?;
    let matches = input
        .as_strings()?
        .iter()
        .map(|s| regex.is_match(s))
        .collect();
    let out = Tensor::from_vec(matches, input.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

fn regex_replace(b: &KernelBuilder<'_>) -> Result<Built> {
    let global = b.attrs().bool("replace_global")?;
    let cache = Cache::default();
    Built::costly(move |ctx| {
        let pattern = pattern_input(ctx)?;
        let Some(rewrite) = scalar(ctx, 2)?.cloned() else {
            return Err(not_scalar(ctx, 2, "Rewrite"));
        };
        let regex = cache.get(&pattern, partial)?;
        map(ctx, |s| Ok(replace(&regex, s, &rewrite, global)))
    })
}

/// RE2's `Replace` or `GlobalReplace`: text without a match, or whose rewrite asks for a group
/// that is not there, stays as it is.
fn replace(regex: &Regex, text: &Bytes, rewrite: &[u8], global: bool) -> Bytes {
    if highest_group(rewrite) >= regex.captures_len() {
        return text.clone();
    }
    let mut out = Vec::with_capacity(text.len());
    if !global {
        let Some((captures, found)) = captures_at(regex, text, 0) else {
            return text.clone();
        };
        out.extend_from_slice(&text[..found.start]);
        if !append_rewrite(&mut out, rewrite, &captures) {
            return text.clone();
        }
        out.extend_from_slice(&text[found.end..]);
        return out.into();
    }
    let (mut at, mut last_end, mut any) = (0, None, false);
    while at <= text.len() {
        let Some((captures, found)) = captures_at(regex, text, at) else {
            break;
        };
        out.extend_from_slice(&text[at..found.start]);
        at = found.start;
        if found.is_empty() && last_end == Some(found.start) {
            // No empty match right behind another match: step over one character.
            let step = character(&text[at..]);
            out.extend_from_slice(&text[at..(at + step).min(text.len())]);
            at += step;
            continue;
        }
        // A faulty rewrite leaves what came before the fault, as in RE2.
        append_rewrite(&mut out, rewrite, &captures);
        at = found.end;
        last_end = Some(at);
        any = true;
    }
    if !any {
        return text.clone();
    }
    out.extend_from_slice(text.get(at..).unwrap_or_default());
    out.into()
}

fn captures_at<'t>(
    regex: &Regex,
    text: &'t [u8],
    at: usize,
) -> Option<(Captures<'t>, std::ops::Range<usize>)> {
    let captures = regex.captures_at(text, at)?;
    let found = captures.get(0)?.range();
    Some((captures, found))
}

/// Bytes of the first character; one if it is no UTF-8.
fn character(text: &[u8]) -> usize {
    let valid = match std::str::from_utf8(&text[..text.len().min(4)]) {
        Ok(s) => s,
        Err(e) => std::str::from_utf8(&text[..e.valid_up_to()]).unwrap_or_default(),
    };
    valid.chars().next().map_or(1, char::len_utf8)
}

/// The highest group a rewrite refers to.
fn highest_group(rewrite: &[u8]) -> usize {
    let mut highest = 0;
    let mut bytes = rewrite.iter();
    while let Some(b) = bytes.next() {
        if *b == b'\\'
            && let Some(d @ b'0'..=b'9') = bytes.next()
        {
            highest = highest.max(usize::from(d - b'0'));
        }
    }
    highest
}

/// Appends `rewrite` with its groups filled in; false at a fault.
fn append_rewrite(out: &mut Vec<u8>, rewrite: &[u8], captures: &Captures<'_>) -> bool {
    let mut bytes = rewrite.iter();
    while let Some(&b) = bytes.next() {
        if b != b'\\' {
            out.push(b);
            continue;
        }
        match bytes.next() {
            Some(b'\\') => out.push(b'\\'),
            Some(d @ b'0'..=b'9') => {
                if let Some(group) = captures.get(usize::from(d - b'0')) {
                    out.extend_from_slice(group.as_bytes());
                }
            }
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &'static str, pattern: &'static str, rewrite: &str) -> String {
        let regex = partial(&Bytes::from_static(pattern.as_bytes())).unwrap();
        let out = replace(
            &regex,
            &Bytes::from_static(text.as_bytes()),
            rewrite.as_bytes(),
            true,
        );
        String::from_utf8(out.to_vec()).unwrap()
    }

    /// Each answer is TensorFlow's.
    #[test]
    fn replacements_are_re2s() {
        for (text, pattern, rewrite, expect) in [
            ("abcabc", "b", "X", "aXcaXc"),
            ("abcabc", "(b)(c)", r"\2\1", "acbacb"),
            ("abc", "(b)", r"\3", "abc"),
            ("abc", "b", r"\", "ac"),
            ("abc", "b", r"\\", r"a\c"),
            ("abc", "b", r"\0\0", "abbc"),
            ("abc", "b", "$0", "a$0c"),
            ("abc", "", "-", "-a-b-c-"),
            ("abc", "x*", "-", "-a-b-c-"),
            ("abc", "b*", "-", "-a-c-"),
            ("é", "", "-", "-é-"),
            ("aaa", "^a", "b", "baa"),
            ("abc", "b", r"\x", "ac"),
            ("abc", "(b)|(c)", r"[\1\2]", "a[b][c]"),
            ("abc\n", "$", "-", "abc\n-"),
        ] {
            assert_eq!(
                run(text, pattern, rewrite),
                expect,
                "{pattern:?} in {text:?}"
            );
        }
    }

    #[test]
    fn hostile_patterns_are_refused() {
        let bomb = Bytes::from_static(b"((((a{1000}){1000}){1000}){1000})");
        assert!(
            partial(&bomb)
                .unwrap_err()
                .message
                .contains("pattern too large")
        );
    }
}
