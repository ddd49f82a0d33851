//! `downpour inspect checkpoint --verify`: every entry against the files, every byte against its
//! checksum. Goes on after damage: what is lost is named, with its place and what can be done.

use super::checkpoint::{Opened, short};
use super::output::{Output, bytes, count};
use super::progress::Progress;
use crate::refusal::Found;
use anyhow::Result;
use downpour_formats::bundle::{BundleReader, Damage, StoredTensor};
use downpour_formats::{DamageKind, Fault};
use serde_json::json;
use std::process::ExitCode;

/// Most overlaps that are named.
const MAX_OVERLAPS: usize = 20;

/// Verifies a checkpoint and reports.
pub(super) fn run(opened: &Opened, json: bool) -> Result<ExitCode> {
    let mut damage = opened.survey.damage.clone();
    let mut parts = 0usize;
    let mut read = 0u64;
    let tensors = opened.tensors();
    let total = tensors
        .iter()
        .fold(0u64, |n, t| n.saturating_add(t.bytes()));
    let mut progress = Progress::new("verifying", total);
    for tensor in tensors {
        match &opened.reader {
            Some(reader) => {
                for part in &tensor.parts {
                    parts += 1;
                    match reader.check(part) {
                        Ok(()) => read = read.saturating_add(part.size),
                        // A file that is missing has been named once already.
                        Err(fault) if fault.kind == DamageKind::Missing => {}
                        Err(fault) => damage.push(Damage {
                            file: reader.data_path(part.shard),
                            offset: Some(part.offset),
                            tensor: Some(part_name(
                                tensor,
                                part.slice.as_ref().map(ToString::to_string),
                            )),
                            fault,
                        }),
                    }
                    progress.advance(part.size);
                }
                damage.extend(uncovered(reader, tensor));
            }
            None => {
                parts += 1;
                if let Err(e) = opened.read(tensor) {
                    damage.push(Damage {
                        file: opened.prefix.clone(),
                        offset: None,
                        tensor: Some(tensor.name.clone()),
                        // Its blocks have checksums, and nothing but the tensors is in them.
                        fault: Fault {
                            kind: DamageKind::Changed { sums: None },
                            ..lost(format!("{e:#}"))
                        },
                    });
                }
            }
        }
    }
    drop(progress);
    let overlaps = opened.survey.overlaps(MAX_OVERLAPS);
    let mut out = Output::new();
    if json {
        let found = damage.iter().map(|d| {
            json!({
                "file": d.file, "offset": d.offset, "tensor": d.tensor,
                "what": what(d), "advice": advice(d), "code": d.fault.status.code.name(),
            })
        });
        let found: Vec<serde_json::Value> = found.collect();
        out.json(&json!({
            "prefix": opened.prefix, "format": opened.format(), "ok": damage.is_empty(),
            "tensors": tensors.len(), "parts": parts, "bytes": read,
            "damage": found, "overlaps": overlaps,
        }))?;
    } else {
        for d in &damage {
            let at = d
                .offset
                .map(|at| format!(" at offset {at}"))
                .unwrap_or_default();
            let whose = d
                .tensor
                .as_ref()
                .map(|t| format!("tensor {t}: "))
                .unwrap_or_default();
            out.line(&format!("DAMAGED {}{at}: {whose}{}", d.file, what(d)))?;
            out.line(&format!("        {}", advice(d)))?;
        }
        for (a, b) in &overlaps {
            out.line(&format!("note: {a} and {b} share bytes of a data file"))?;
        }
        if damage.is_empty() {
            out.line(&format!(
                "{}: whole; {}, {} read and compared",
                opened.prefix,
                count(tensors.len(), "tensor"),
                bytes(read)
            ))?;
        }
    }
    out.finish()?;
    match damage.len() {
        0 => Ok(ExitCode::SUCCESS),
        n => Err(Found(format!("{}: {} found", opened.prefix, count(n, "problem"))).into()),
    }
}

fn part_name(tensor: &StoredTensor, slice: Option<String>) -> String {
    match slice {
        Some(slice) => format!("{}, slice {slice}", tensor.name),
        None => tensor.name.clone(),
    }
}

/// Whether the slices of a partitioned tensor leave something out.
fn uncovered(reader: &BundleReader, tensor: &StoredTensor) -> Option<Damage> {
    if tensor.slices.is_empty() {
        return None;
    }
    let sum = tensor.slices.iter().try_fold(0usize, |sum, slice| {
        Some(sum.saturating_add(slice.slice_shape(&tensor.shape).ok()?.num_elements()))
    });
    if sum.is_some_and(|sum| sum >= tensor.shape.num_elements()) {
        return None;
    }
    Some(Damage {
        file: downpour_formats::bundle::index_path(reader.prefix()),
        offset: None,
        tensor: Some(tensor.name.clone()),
        fault: lost("its slices do not cover it"),
    })
}

fn lost(text: impl Into<String>) -> Fault {
    downpour_graph::Status::data_loss(text).into()
}

/// The damage in plain words.
fn what(damage: &Damage) -> String {
    match damage.fault.kind {
        DamageKind::Missing => "the file is missing".to_owned(),
        DamageKind::CutShort => "the file ends before the tensor does".to_owned(),
        DamageKind::Changed {
            sums: Some((stored, found)),
        } => format!(
            "its bytes are not those that were saved (checksum: stored {stored:08} vs. calculated on the restored bytes {found:08})"
        ),
        _ => short(&damage.fault.status.message).to_owned(),
    }
}

/// What can be done about damage.
fn advice(damage: &Damage) -> &'static str {
    match (damage.fault.kind, &damage.tensor) {
        (DamageKind::Missing, _) => {
            "copy it from where the checkpoint was written; all data files belong to it"
        }
        (DamageKind::CutShort, _) => {
            "the file was cut short, perhaps while copying: copy it again, or restore an older checkpoint"
        }
        (DamageKind::Changed { .. }, _) => {
            "bytes changed after saving (disk, memory or copy): copy the file again, or restore an older checkpoint; other tensors are not affected"
        }
        (_, Some(_)) => {
            "what the index says about this tensor cannot be: restore an older checkpoint; other tensors are not affected"
        }
        (_, None) => {
            "this part of the index is lost with the tensors named in it: copy it again, or restore an older checkpoint"
        }
    }
}
