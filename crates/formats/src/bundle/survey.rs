//! What a bundle holds and what is wrong with it, for people who look at one: unlike a restore, a
//! survey goes on after the first damage and says where each lies.

use super::entry::{Entry, dtype_text, key_text};
use super::ordered_code::slice_key;
use super::slice::TensorSlice;
use super::{BundleReader, data_path, index_path};
use crate::damage::Fault;
use downpour_graph::Status;
use downpour_tensor::{DType, Shape};
use std::collections::{BTreeMap, HashMap};

/// A tensor as the index describes it.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// Name in the checkpoint.
    pub name: String,
    /// TensorFlow's name for the element type, known or not.
    pub dtype: String,
    /// The element type, if it is one that we know.
    pub known: Option<DType>,
    /// Shape of the whole tensor.
    pub shape: Shape,
    /// The parts it was saved in; empty for a tensor that is stored whole.
    pub slices: Vec<TensorSlice>,
    /// Where its bytes lie: one for a whole tensor, else one per slice that is there.
    pub parts: Vec<StoredPart>,
}

impl StoredTensor {
    /// Bytes in the data files.
    pub fn bytes(&self) -> u64 {
        self.parts
            .iter()
            .fold(0, |sum, p| sum.saturating_add(p.size))
    }
}

/// Bytes of a tensor, or of a slice of one, in a data file.
#[derive(Debug, Clone)]
pub struct StoredPart {
    /// Which slice, if the tensor is not stored whole.
    pub slice: Option<TensorSlice>,
    /// Number of the data file.
    pub shard: i32,
    /// Where it begins in there.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Masked checksum.
    pub crc: u32,
    key: Vec<u8>,
    entry: Entry,
}

/// Something that is not as it should be.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// Where in the file, as far as that is known.
    pub offset: Option<u64>,
    /// The tensor, if it is about one.
    pub tensor: Option<String>,
    /// What is wrong.
    pub fault: Fault,
}

/// What a bundle holds.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Number of data files that the index counts on.
    pub shards: i32,
    /// Tensors by name.
    pub tensors: Vec<StoredTensor>,
    /// Data files that are there: path and bytes.
    pub files: Vec<(String, u64)>,
    /// What is wrong with the index, or with what it says about sizes and places.
    pub damage: Vec<Damage>,
}

/// How many data files are looked for by name. An index may claim any number.
const MAX_SHARDS: i32 = 100_000;

impl BundleReader<'_> {
    /// Reads the whole index and looks at the data files' lengths, not at their contents.
    pub fn survey(&self) -> Survey {
        let mut survey = Survey {
            shards: self.shards,
            ..Survey::default()
        };
        let index = index_path(&self.prefix);
        let mut entries: BTreeMap<Vec<u8>, Entry> = BTreeMap::new();
        let mut damage = Vec::new();
        let mut unreadable = Vec::new();
        self.table.survey(
            |key, value| {
                if key.is_empty() {
                    return;
                }
                match Entry::decode(key, value) {
                    Ok(entry) => drop(entries.insert(key.to_vec(), entry)),
                    Err(status) => unreadable.push(Damage {
                        file: index.clone(),
                        offset: None,
                        tensor: Some(key_text(key)),
                        fault: status.into(),
                    }),
                }
            },
            |offset, fault| {
                damage.push(Damage {
                    file: index.clone(),
                    offset: Some(offset),
                    tensor: None,
                    fault,
                });
            },
        );
        survey.damage = damage;
        survey.damage.extend(unreadable);
        self.look_at_files(&entries, &mut survey);
        self.collect(entries, &index, &mut survey);
        survey
    }

    /// Finds the data files that entries lie in, and those that the header counts.
    fn look_at_files(&self, entries: &BTreeMap<Vec<u8>, Entry>, survey: &mut Survey) {
        let mut ids: Vec<i32> = (0..self.shards.min(MAX_SHARDS)).collect();
        if self.shards > MAX_SHARDS {
            ids.clear();
        }
        let stored = entries.values().filter(|e| e.slices.is_empty());
        ids.extend(stored.map(|e| e.shard));
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            let path = data_path(&self.prefix, id, self.shards);
            match self.shard_len(id) {
                Ok(len) => survey.files.push((path, len)),
                Err(status) => survey.damage.push(Damage {
                    file: path,
                    offset: None,
                    tensor: None,
                    fault: status.into(),
                }),
            }
        }
    }

    /// Brings slices to the tensors that they belong to.
    fn collect(&self, mut entries: BTreeMap<Vec<u8>, Entry>, index: &str, survey: &mut Survey) {
        let names: Vec<Vec<u8>> = entries
            .keys()
            .filter(|key| key.first() != Some(&0))
            .cloned()
            .collect();
        for key in names {
            let Some(entry) = entries.remove(&key) else {
                continue;
            };
            let name = key_text(&key);
            let mut tensor = StoredTensor {
                name: name.clone(),
                dtype: dtype_text(entry.dtype),
                known: entry.known_dtype().ok(),
                shape: entry.shape.clone(),
                slices: entry.slices.clone(),
                parts: Vec::new(),
            };
            if entry.slices.is_empty() {
                tensor.parts.push(part(None, key, entry));
            } else {
                for slice in &tensor.slices {
                    let key = slice_key(&key, slice);
                    match entries.remove(&key) {
                        Some(entry) => tensor.parts.push(part(Some(slice.clone()), key, entry)),
                        None => survey.damage.push(Damage {
                            file: index.to_owned(),
                            offset: None,
                            tensor: Some(name.clone()),
                            fault: Status::data_loss(format!("slice {slice} is missing")).into(),
                        }),
                    }
                }
            }
            survey.tensors.push(tensor);
        }
        // Slices that no tensor lists can be reached by nobody.
        let strays = entries.into_keys().map(|key| Damage {
            file: index.to_owned(),
            offset: None,
            tensor: Some(key_text(&key).replace('\0', "\\0")),
            fault: Status::data_loss("a stored slice that no tensor lists").into(),
        });
        survey.damage.extend(strays);
    }

    /// Reads the bytes of a part and compares their checksum.
    pub fn check(&self, part: &StoredPart) -> Result<(), Fault> {
        self.check_stored(&part.key, &part.entry)
    }

    /// The prefix it was opened with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Path of a data file.
    pub fn data_path(&self, shard: i32) -> String {
        data_path(&self.prefix, shard, self.shards)
    }
}

fn part(slice: Option<TensorSlice>, key: Vec<u8>, entry: Entry) -> StoredPart {
    StoredPart {
        slice,
        shard: entry.shard,
        // A negative one is refused when it is followed.
        offset: u64::try_from(entry.offset).unwrap_or(0),
        size: u64::try_from(entry.size).unwrap_or(0),
        crc: entry.crc,
        key,
        entry,
    }
}

impl Survey {
    /// Tensors whose bytes overlap in a data file: pairs of names, at most `limit`. A writer never
    /// makes such; a restore does not mind.
    pub fn overlaps(&self, limit: usize) -> Vec<(String, String)> {
        let mut by_shard: HashMap<i32, Vec<(u64, u64, &str)>> = HashMap::new();
        for tensor in &self.tensors {
            for part in tensor.parts.iter().filter(|p| p.size > 0) {
                let end = part.offset.saturating_add(part.size);
                let places = by_shard.entry(part.shard).or_default();
                places.push((part.offset, end, &tensor.name));
            }
        }
        let mut found = Vec::new();
        for places in by_shard.values_mut() {
            places.sort_unstable();
            let (mut reach, mut owner) = (0, "");
            for (start, end, name) in places {
                if *start < reach {
                    found.push((owner.to_owned(), (*name).to_owned()));
                }
                if *end > reach {
                    (reach, owner) = (*end, name);
                }
            }
        }
        found.sort();
        found.truncate(limit);
        found
    }
}
