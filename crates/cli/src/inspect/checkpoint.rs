//! `downpour inspect checkpoint`: what tensors a checkpoint holds. Verification and comparison are
//! in `verify` and `diff`.

use super::locate::{self, Located};
use super::output::{Align, Output, Table, bytes, count, json_number, preview, thousands};
use super::statistics::{Statistics, each, python_name};
use super::{diff, unreadable, verify};
use crate::refusal::Found;
use anyhow::{Result, anyhow, bail};
use clap::Args;
use downpour_formats::Files;
use downpour_formats::bundle::{
    BundleReader, StoredTensor, Survey, index_path, list_v1, restore_v1,
};
use downpour_graph::Code;
use downpour_tensor::{DType, Tensor};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Shown below the flags.
pub(super) const EXAMPLES: &str = "\
PATH is a prefix (logs/model.ckpt-100), one of its files, a directory (its latest whole checkpoint), or a SavedModel.

  downpour inspect checkpoint logs                         names, types, shapes, sizes
  downpour inspect checkpoint logs --stats                 and the range, mean and spread of the values
  downpour inspect checkpoint logs --tensor softmax/w      the values of one tensor
  downpour inspect checkpoint logs --verify                every byte against its checksum; exit code 1 names the damage
  downpour inspect checkpoint old --diff new               what changed; exit code 1 if anything did";

/// Flags of `downpour inspect checkpoint`.
#[derive(Args)]
pub(crate) struct Checkpoint {
    /// Which checkpoint: a prefix, one of its files, or a directory
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// Only tensors whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// Read the values and show their range, mean and spread
    #[arg(long)]
    stats: bool,

    /// Show the values of this tensor (may be given several times)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["stats", "verify", "diff"])]
    tensor: Vec<String>,

    /// How many values at each end of each dimension --tensor shows; -1 for all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        allow_negative_numbers = true
    )]
    edge: i64,

    /// Read every byte and compare every checksum
    #[arg(long, conflicts_with_all = ["stats", "diff"])]
    verify: bool,

    /// Compare with another checkpoint
    #[arg(long, value_name = "PATH", conflicts_with = "stats")]
    diff: Option<PathBuf>,

    /// With --diff: values that differ by no more than this count as equal
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        requires = "diff",
        allow_negative_numbers = true
    )]
    tolerance: f64,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Checkpoint {
    pub(super) fn run(self) -> Result<ExitCode> {
        if self.tolerance.is_nan() || self.tolerance < 0.0 {
            bail!("--tolerance is {}; it must be 0 or more", self.tolerance);
        }
        let storage = Files::new();
        let opened = Opened::open(&storage, &self.path)?;
        if let Some(other) = &self.diff {
            let other = Opened::open(&storage, other)?;
            let chosen = |name: &str| self.is_chosen(name);
            return diff::run(&opened, &other, &chosen, self.tolerance, self.json);
        }
        if self.verify {
            return verify::run(&opened, self.json);
        }
        if !self.tensor.is_empty() {
            return self.show_values(&opened);
        }
        self.list(&opened)
    }

    fn is_chosen(&self, name: &str) -> bool {
        self.filter
            .as_deref()
            .is_none_or(|part| name.contains(part))
    }

    fn list(&self, opened: &Opened) -> Result<ExitCode> {
        let tensors: Vec<&StoredTensor> = opened
            .tensors()
            .iter()
            .filter(|t| self.is_chosen(&t.name))
            .collect();
        if tensors.is_empty() && self.filter.is_some() {
            bail!(
                "{}: no tensor's name contains '{}'",
                opened.prefix,
                self.filter.as_deref().unwrap_or_default()
            );
        }
        let mut out = Output::new();
        if self.json {
            out.json(&self.json_list(opened, &tensors))?;
        } else {
            self.print_list(opened, &tensors, &mut out)?;
        }
        out.finish()?;
        match opened.survey.damage.len() {
            0 => Ok(ExitCode::SUCCESS),
            n => Err(Found(format!(
                "{}: {} found; --verify shows what and where",
                opened.prefix,
                count(n, "problem")
            ))
            .into()),
        }
    }

    fn print_list(
        &self,
        opened: &Opened,
        tensors: &[&StoredTensor],
        out: &mut Output,
    ) -> Result<()> {
        out.line(&opened.headline(tensors))?;
        for note in &opened.notes {
            out.line(&format!("note: {note}"))?;
        }
        use Align::{Left, Right};
        let mut columns = vec![
            ("NAME", Left),
            ("DTYPE", Left),
            ("SHAPE", Left),
            ("BYTES", Right),
        ];
        match self.stats {
            true => columns.extend([
                ("MIN", Right),
                ("MAX", Right),
                ("MEAN", Right),
                ("STD", Right),
                ("", Left),
            ]),
            false => columns.push(("", Left)),
        }
        let mut table = Table::new(&columns);
        for tensor in tensors {
            let mut cells = vec![
                tensor.name.clone(),
                python_name(&tensor.dtype),
                tensor.shape.to_string(),
                match opened.is_v1 {
                    true => "-".to_owned(),
                    false => bytes(tensor.bytes()),
                },
            ];
            match self.stats {
                true => cells.extend(stat_cells(opened, tensor)),
                false => cells.push(match tensor.slices.len() {
                    0 => String::new(),
                    n => format!("in {}", count(n, "slice")),
                }),
            }
            table.row(cells);
        }
        out.table(&table)
    }

    fn json_list(&self, opened: &Opened, tensors: &[&StoredTensor]) -> Value {
        let each = tensors.iter().map(|tensor| {
            let mut made = describe(tensor, opened.is_v1);
            if self.stats {
                match opened.read(tensor) {
                    Ok(values) => {
                        if let Some(stats) = Statistics::of(&values) {
                            made.insert("stats".into(), stats.json());
                        }
                    }
                    Err(e) => drop(made.insert("error".into(), json!(format!("{e:#}")))),
                }
            }
            Value::Object(made)
        });
        let tensors: Vec<Value> = each.collect();
        json!({
            "prefix": opened.prefix,
            "format": opened.format(),
            "shards": opened.survey.shards,
            "files": files_json(&opened.survey),
            "notes": opened.notes,
            "problems": opened.survey.damage.len(),
            "tensors": tensors,
        })
    }

    fn show_values(&self, opened: &Opened) -> Result<ExitCode> {
        let mut out = Output::new();
        let mut all = Vec::new();
        for name in &self.tensor {
            let tensor = opened.find(name)?;
            let values = opened.read(tensor)?;
            if self.json {
                let mut made = describe(tensor, opened.is_v1);
                made.insert("values".into(), json_values(&values));
                all.push(Value::Object(made));
                continue;
            }
            out.line(&format!(
                "{name}  {} {}",
                python_name(&tensor.dtype),
                tensor.shape
            ))?;
            match values.as_strings() {
                Ok(strings) => {
                    for string in strings {
                        out.line(&preview(string, 200))?;
                    }
                }
                Err(_) => out.raw(&format!("{}\n", values.summarize_nested(self.edge)))?,
            }
        }
        if self.json {
            out.json(&Value::Array(all))?;
        }
        out.finish()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// An open checkpoint of either format.
pub(super) struct Opened<'a> {
    pub(super) prefix: String,
    pub(super) is_v1: bool,
    notes: Vec<String>,
    storage: &'a Files,
    /// Of the second format.
    pub(super) reader: Option<BundleReader<'a>>,
    pub(super) survey: Survey,
}

impl<'a> Opened<'a> {
    fn open(storage: &'a Files, path: &std::path::Path) -> Result<Opened<'a>> {
        let Located {
            prefix,
            is_v1,
            notes,
        } = locate::checkpoint(storage, path)?;
        let (reader, survey) = if is_v1 {
            let tensors = list_v1(storage, &prefix).map_err(|e| {
                anyhow!(
                    "{prefix} is no checkpoint ({}); give a prefix, an .index file or a directory",
                    short(&e.message)
                )
            })?;
            let survey = Survey {
                shards: 1,
                tensors,
                ..Survey::default()
            };
            (None, survey)
        } else {
            let reader = BundleReader::open(storage, &prefix).map_err(|e| {
                let index = index_path(&prefix);
                match e.code {
                    Code::PermissionDenied | Code::FailedPrecondition => unreadable(&index, &e),
                    _ => Found(format!(
                        "{index} is damaged: {}; restore from another checkpoint or copy the file again",
                        short(&e.message)
                    ))
                    .into(),
                }
            })?;
            let survey = reader.survey();
            (Some(reader), survey)
        };
        Ok(Opened {
            prefix,
            is_v1,
            notes,
            storage,
            reader,
            survey,
        })
    }

    pub(super) fn tensors(&self) -> &[StoredTensor] {
        &self.survey.tensors
    }

    pub(super) fn format(&self) -> &'static str {
        match self.is_v1 {
            true => "V1",
            false => "V2",
        }
    }

    fn find(&self, name: &str) -> Result<&StoredTensor> {
        let found = self.tensors().iter().find(|t| t.name == name);
        found.ok_or_else(|| {
            let near: Vec<&str> = self
                .tensors()
                .iter()
                .map(|t| t.name.as_str())
                .filter(|n| n.contains(name))
                .take(3)
                .collect();
            match near.is_empty() {
                true => anyhow!(
                    "{} has no tensor '{name}'; leave --tensor out to see what it has",
                    self.prefix
                ),
                false => anyhow!(
                    "{} has no tensor '{name}'; did you mean {}?",
                    self.prefix,
                    near.join(" or ")
                ),
            }
        })
    }

    /// The values of a tensor, whole, with its checksums compared.
    pub(super) fn read(&self, tensor: &StoredTensor) -> Result<Tensor> {
        let name = &tensor.name;
        let outcome = match (&self.reader, tensor.known) {
            (Some(reader), _) => reader.read(name),
            (None, Some(dtype)) => restore_v1(self.storage, &self.prefix, name, "", dtype),
            (None, None) => bail!("{name}: {} is a type that is not known here", tensor.dtype),
        };
        outcome.map_err(|e| Found(format!("{name}: {}", e.message)).into())
    }

    /// One line about all of it.
    fn headline(&self, tensors: &[&StoredTensor]) -> String {
        let parameters = tensors.iter().filter(|t| t.known != Some(DType::String));
        let parameters: u64 =
            parameters.fold(0, |n, t| n.saturating_add(t.shape.num_elements() as u64));
        let size: u64 = tensors.iter().fold(0, |n, t| n.saturating_add(t.bytes()));
        let files = match self.is_v1 {
            true => "one file".to_owned(),
            false => format!(
                "{}, {}",
                count(self.survey.shards.max(0) as usize, "data file"),
                bytes(size)
            ),
        };
        format!(
            "{}  ({} checkpoint, {}, {} values, {files})",
            self.prefix,
            self.format(),
            count(tensors.len(), "tensor"),
            thousands(parameters),
        )
    }
}

/// The end of TensorFlow's nested texts is what went wrong.
pub(super) fn short(message: &str) -> &str {
    match message.rfind("): ") {
        Some(at) => &message[at + 3..],
        None => message
            .split(": perhaps your file")
            .next()
            .unwrap_or(message),
    }
}

fn stat_cells(opened: &Opened, tensor: &StoredTensor) -> Vec<String> {
    let blank = |note: String| {
        vec![
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            note,
        ]
    };
    match opened.read(tensor) {
        Err(e) => blank(format!("unreadable: {e:#}")),
        Ok(values) => match Statistics::of(&values) {
            Some(stats) => stats.cells(),
            None => blank(match values.as_strings() {
                Ok(strings) => {
                    let bytes: usize = strings.iter().map(|s| s.len()).sum();
                    format!("{}, {bytes} bytes of text", count(strings.len(), "string"))
                }
                Err(_) => "no numbers".to_owned(),
            }),
        },
    }
}

pub(super) fn describe(tensor: &StoredTensor, is_v1: bool) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("name".into(), json!(tensor.name));
    out.insert("dtype".into(), json!(python_name(&tensor.dtype)));
    out.insert("shape".into(), json!(tensor.shape.dims()));
    if !tensor.slices.is_empty() {
        let slices: Vec<String> = tensor.slices.iter().map(ToString::to_string).collect();
        out.insert("slices".into(), json!(slices));
    }
    if !is_v1 {
        out.insert("bytes".into(), json!(tensor.bytes()));
        let parts = tensor.parts.iter().map(|p| {
            json!({"shard": p.shard, "offset": p.offset, "bytes": p.size, "crc32c": format!("{:08x}", p.crc)})
        });
        out.insert("parts".into(), parts.collect());
    }
    out
}

fn files_json(survey: &Survey) -> Value {
    let each = survey.files.iter();
    each.map(|(path, len)| json!({"path": path, "bytes": len}))
        .collect()
}

/// All values in row-major order: strings as text where they are, as hex where not.
fn json_values(tensor: &Tensor) -> Value {
    if let Ok(strings) = tensor.as_strings() {
        let each = strings.iter().map(|s| match std::str::from_utf8(s) {
            Ok(text) => json!(text),
            Err(_) => json!({"hex": s.iter().map(|b| format!("{b:02x}")).collect::<String>()}),
        });
        return each.collect();
    }
    // Exactly, where numbers of JSON's kind would not be exact.
    if let Ok(whole) = tensor.as_slice::<i64>() {
        return json!(whole);
    }
    if let Ok(whole) = tensor.as_slice::<u64>() {
        return json!(whole);
    }
    let is_whole = tensor.dtype().is_integer() || tensor.dtype() == DType::Bool;
    let mut out = Vec::new();
    let known = each(tensor, |x| {
        out.push(match is_whole {
            true => json!(x as i64),
            false => json_number(x),
        });
    });
    match known {
        Some(()) => Value::Array(out),
        None => Value::Null,
    }
}
