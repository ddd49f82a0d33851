//! Tensor maps: values that hold tensors under tensors as keys, in the order of their insertion.

use super::pieces::pack;
use super::tensor_list::shown;
use super::values::sum;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor, Variant, VariantValue};
use std::any::Any;
use std::collections::HashMap;
use std::fmt;

pub(super) fn register(r: &mut Registry) {
    r.add("EmptyTensorMap", |_| {
        Built::cheap(|ctx| {
            ctx.set_output(0, Tensor::variant(Variant::new(TensorMap::default())));
            Ok(())
        })
    });
    r.add("TensorMapSize", |_| {
        Built::cheap(|ctx| {
            let size = TensorMap::of(ctx)?.entries.len();
            ctx.set_output(0, Tensor::scalar(i32::try_from(size).unwrap_or(i32::MAX)));
            Ok(())
        })
    });
    r.add("TensorMapInsert", |_| Built::cheap(insert));
    r.add("TensorMapErase", |_| Built::cheap(erase));
    r.add("TensorMapLookup", lookup);
    r.add("TensorMapHasKey", |_| {
        Built::cheap(|ctx| {
            let found = TensorMap::of(ctx)?.find(ctx.input(1)?)?.is_some();
            ctx.set_output(0, Tensor::scalar(found));
            Ok(())
        })
    });
    r.add("TensorMapStackKeys", stack_keys);
}

/// A map from tensors to tensors.
#[derive(Clone, Default)]
pub(super) struct TensorMap {
    entries: Vec<(Tensor, Tensor)>,
    /// Where each key is.
    places: HashMap<Key, usize>,
}

/// A tensor by value: type, shape, contents.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key(DType, Shape, Vec<bytes::Bytes>);

impl fmt::Debug for TensorMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TensorMap")
    }
}

impl VariantValue for TensorMap {
    fn type_name(&self) -> &str {
        "tensorflow::TensorMap"
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Key {
    fn of(tensor: &Tensor) -> Result<Key> {
        let contents = match tensor.buffer() {
            Some(buffer) => vec![buffer.to_bytes()],
            None => tensor
                .as_strings()
                .map_err(|_| unhashable(tensor))?
                .to_vec(),
        };
        Ok(Key(tensor.dtype(), tensor.shape().clone(), contents))
    }
}

fn unhashable(tensor: &Tensor) -> Status {
    Status::invalid_argument(format!(
        "a tensor of type {} cannot be a key",
        tensor.dtype()
    ))
}

impl TensorMap {
    fn of<'c>(ctx: &'c OpContext<'_>) -> Result<&'c TensorMap> {
        let input = ctx.input(0)?;
        if !input.shape().is_scalar() {
            return Err(Status::invalid_argument(format!(
                "Input map must be a scalar. Saw: {}",
                input.shape()
            )));
        }
        let variant = input.as_variants()?.first();
        variant.and_then(Variant::downcast).ok_or_else(|| {
            Status::invalid_argument(format!(
                "Input handle is not a map. Saw: '{}'",
                shown(variant)
            ))
        })
    }

    fn find(&self, key: &Tensor) -> Result<Option<&Tensor>> {
        let place = self.places.get(&Key::of(key)?);
        Ok(place.and_then(|&i| self.entries.get(i)).map(|e| &e.1))
    }

    fn insert(&mut self, key: Tensor, value: Tensor) -> Result<()> {
        let place = *self
            .places
            .entry(Key::of(&key)?)
            .or_insert(self.entries.len());
        match self.entries.get_mut(place) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((key, value)),
        }
        Ok(())
    }

    fn erase(&mut self, key: &Tensor) -> Result<bool> {
        let Some(place) = self.places.remove(&Key::of(key)?) else {
            return Ok(false);
        };
        self.entries.remove(place);
        for other in self.places.values_mut().filter(|p| **p > place) {
            *other -= 1;
        }
        Ok(true)
    }

    /// The union of both; values under the same key are added.
    pub(super) fn sum(&self, ctx: &OpContext<'_>, other: &TensorMap) -> Result<TensorMap> {
        let mut out = self.clone();
        for (key, value) in &other.entries {
            let value = match self.find(key)? {
                Some(mine) => sum(ctx, mine, value)?,
                None => value.clone(),
            };
            out.insert(key.clone(), value)?;
        }
        Ok(out)
    }
}

fn missing(what: &str, key: &Tensor) -> Status {
    Status::invalid_argument(format!(
        "Trying to {what}. Could not find key \"{}\".",
        key.summarize(100)
    ))
}

fn insert(ctx: &mut OpContext<'_>) -> Result<()> {
    let mut map = TensorMap::of(ctx)?.clone();
    map.insert(ctx.take(1)?, ctx.take(2)?)?;
    ctx.set_output(0, Tensor::variant(Variant::new(map)));
    Ok(())
}

fn erase(ctx: &mut OpContext<'_>) -> Result<()> {
    let mut map = TensorMap::of(ctx)?.clone();
    let key = ctx.input(1)?;
    if !map.erase(key)? {
        return Err(missing("erase non-existent item", key));
    }
    ctx.set_output(0, Tensor::variant(Variant::new(map)));
    Ok(())
}

fn lookup(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("value_dtype")?;
    Built::cheap(move |ctx| {
        let key = ctx.input(1)?;
        let Some(value) = TensorMap::of(ctx)?.find(key)? else {
            return Err(missing("lookup non-existent key", key));
        };
        if value.dtype() != dtype {
            return Err(Status::internal(format!(
                "Output 0 of type {} does not match declared output type {dtype} for node {{{{node {}}}}}",
                value.dtype(),
                ctx.name()
            )));
        }
        let value = value.clone();
        ctx.set_output(0, value);
        Ok(())
    })
}

fn stack_keys(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("key_dtype")?;
    let invalid = |text: &str| Err(Status::invalid_argument(text));
    Built::cheap(move |ctx| {
        let map = TensorMap::of(ctx)?;
        let keys: Vec<&Tensor> = map.entries.iter().map(|e| &e.0).collect();
        let Some(first) = keys.first() else {
            return invalid("TensorMapStackKeys cannot be called on empty map.");
        };
        if keys.iter().any(|k| k.dtype() != dtype) {
            return invalid("Key does not match requested dtype.");
        }
        if keys.iter().any(|k| k.shape() != first.shape()) {
            return invalid("Keys must all have the same shape.");
        }
        let stacked = pack(ctx.device(), dtype, first.shape(), &keys)?;
        ctx.set_output(0, stacked);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_equal_by_type_shape_and_contents() {
        let mut map = TensorMap::default();
        let (one, two) = (Tensor::scalar(1i32), Tensor::vector(vec![1i32]));
        map.insert(one.clone(), Tensor::scalar(10f32)).unwrap();
        map.insert(two.clone(), Tensor::scalar(20f32)).unwrap();
        map.insert(one.clone(), Tensor::scalar(11f32)).unwrap();
        assert_eq!(map.entries.len(), 2);
        let found = |map: &TensorMap, key: &Tensor| {
            let value = map.find(key).unwrap()?;
            Some(value.scalar_value::<f32>().unwrap())
        };
        assert_eq!(found(&map, &one), Some(11.0));
        assert!(found(&map, &Tensor::scalar(1i64)).is_none());
        assert!(map.erase(&one).unwrap() && !map.erase(&one).unwrap());
        assert_eq!(found(&map, &two), Some(20.0));
    }
}
