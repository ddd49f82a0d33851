//! `AsString`: numbers as C's printf writes them.

use super::pack::packed;
use super::printf::{Notation, Spec, decimal, fixed, float, integer, text};
use crate::types::with_type;
use bytes::Bytes;
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{Complex32, Complex64, DType, Tensor};

/// Most characters a number may be asked to take; TensorFlow would take any.
const MAX_LENGTH: i64 = 1 << 16;

pub(super) fn register(r: &mut Registry) {
    r.add("AsString", as_string);
}

struct Format {
    spec: Spec,
    notation: Notation,
}

fn as_string(b: &KernelBuilder<'_>) -> Result<Built> {
    let format = parse(b.attrs())?;
    Built::cheap(move |ctx| {
        let input = ctx.input(0)?;
        ctx.check_alloc(DType::String, input.shape())?;
        let strings = Tensor::strings(format.all(input)?, input.shape().clone())?;
        ctx.set_output(0, strings);
        Ok(())
    })
}

fn parse(attrs: &Attrs) -> Result<Format> {
    let dtype = attrs.dtype("T")?;
    let (precision, width) = (attrs.int("precision")?, attrs.int("width")?);
    let (scientific, shortest) = (attrs.bool("scientific")?, attrs.bool("shortest")?);
    let fill = attrs.bytes("fill")?;
    let is_float = dtype.is_floating() || dtype.is_complex() || dtype == DType::String;
    if !is_float && dtype != DType::Variant {
        if scientific || shortest {
            return Err(Status::invalid_argument(format!(
                "scientific and shortest format not supported for datatype {dtype}"
            )));
        }
        if precision >= 0 {
            return Err(Status::invalid_argument(format!(
                "precision not supported for datatype {dtype}"
            )));
        }
    }
    let flag = match fill.as_ref() {
        [] => 0,
        [flag @ (b' ' | b'+' | b'-' | b'0')] => *flag,
        [_] => {
            return Err(Status::invalid_argument(format!(
                "Fill argument not supported: \"{}\"",
                String::from_utf8_lossy(fill)
            )));
        }
        _ => {
            return Err(Status::invalid_argument(
                "Fill string must be one or fewer characters",
            ));
        }
    };
    if scientific && shortest {
        return Err(Status::invalid_argument(
            "Cannot select both scientific and shortest notation",
        ));
    }
    if width > MAX_LENGTH || precision > MAX_LENGTH {
        return Err(Status::invalid_argument(format!(
            "width and precision must not be above {MAX_LENGTH}"
        )));
    }
    let notation = match (scientific, shortest) {
        (true, _) => Notation::Scientific,
        (_, true) => Notation::Shortest,
        _ => Notation::Fixed,
    };
    let spec = Spec {
        flag,
        width: usize::try_from(width).unwrap_or(0),
        precision: usize::try_from(precision).ok(),
    };
    Ok(Format { spec, notation })
}

impl Format {
    fn all(&self, input: &Tensor) -> Result<Vec<Bytes>> {
        let number = |v: f64, out: &mut Vec<u8>| {
            // The form that is asked for nearly always, without a detour.
            let bare = self.spec.flag == 0 && self.spec.width == 0;
            let precision = self.spec.precision.unwrap_or(6);
            if !bare || self.notation != Notation::Fixed || !fixed(v, precision, out) {
                out.extend_from_slice(float(v, self.notation, self.spec).as_bytes());
            }
        };
        let pair = |re: f64, im: f64, out: &mut Vec<u8>| {
            out.push(b'(');
            number(re, out);
            out.push(b',');
            number(im, out);
            out.push(b')');
        };
        Ok(match input.dtype() {
            DType::Bool => {
                let word = |&v: &bool| Bytes::from_static(if v { b"true" } else { b"false" });
                input.as_slice::<bool>()?.iter().map(word).collect()
            }
            DType::String => {
                let padded = |s: &Bytes| Bytes::from(text(s, self.spec));
                input.as_strings()?.iter().map(padded).collect()
            }
            DType::Complex64 => packed(input.as_slice::<Complex32>()?, |v, out| {
                pair(v.re.into(), v.im.into(), out);
            }),
            DType::Complex128 => packed(input.as_slice::<Complex64>()?, |v, out| {
                pair(v.re, v.im, out)
            }),
            dtype if dtype.is_floating() => with_type!(dtype, T in floats => {
                packed(input.as_slice::<T>()?, |&v, out| number(v.into(), out))
            }),
            dtype => with_type!(dtype, T in ints => {
                packed(input.as_slice::<T>()?, |&v, out| {
                    let wide = i128::from(v);
                    let mut room = [0; 20];
                    // At most 64 bits, so the magnitude fits.
                    let text = decimal(wide.unsigned_abs() as u64, &mut room);
                    if self.spec.flag == 0 && self.spec.width == 0 {
                        if wide < 0 {
                            out.push(b'-');
                        }
                        out.extend_from_slice(text.as_bytes());
                    } else {
                        out.extend_from_slice(integer(text, wide < 0, self.spec).as_bytes());
                    }
                })
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::AttrValue;
    use downpour_tensor::Tensor;

    fn texts(input: Tensor, attrs: &[(&str, AttrValue)]) -> Vec<String> {
        let mut all = vec![("T", input.dtype().into())];
        all.extend(attrs.iter().cloned());
        let out = run_op("AsString", vec![input], &all).unwrap();
        let text = |b: &bytes::Bytes| String::from_utf8(b.to_vec()).unwrap();
        out[0].as_strings().unwrap().iter().map(text).collect()
    }

    #[test]
    fn floats_read_as_printf_writes_them() {
        let values = Tensor::vector(vec![-1.5f32, 1e10, 123456.79, f32::NAN, -0.0, 0.1]);
        let plain = texts(values.clone(), &[]);
        let expect = [
            "-1.500000",
            "10000000000.000000",
            "123456.789062",
            "nan",
            "-0.000000",
            "0.100000",
        ];
        assert_eq!(plain, expect);
        let shortest = texts(values.clone(), &[("shortest", true.into())]);
        assert_eq!(shortest, ["-1.5", "1e+10", "123457", "nan", "-0", "0.1"]);
        let narrow = [("shortest", true.into()), ("precision", 3i64.into())];
        assert_eq!(texts(values.clone(), &narrow)[2], "1.23e+05");
        let wide = [
            ("width", 12i64.into()),
            ("fill", AttrValue::Str(bytes::Bytes::from_static(b"0"))),
        ];
        let expect = [
            "-0001.500000",
            "10000000000.000000",
            "123456.789062",
            "         nan",
            "-0000.000000",
            "00000.100000",
        ];
        assert_eq!(texts(values.clone(), &wide), expect);
        let scientific = [("scientific", true.into()), ("precision", 3i64.into())];
        assert_eq!(texts(values, &scientific)[1], "1.000e+10");
    }

    #[test]
    fn integers_bools_and_pairs() {
        let zeros = [
            ("width", 5i64.into()),
            ("fill", AttrValue::Str(bytes::Bytes::from_static(b"0"))),
        ];
        assert_eq!(
            texts(Tensor::vector(vec![-1i32, 100]), &zeros),
            ["-0001", "00100"]
        );
        assert_eq!(
            texts(Tensor::vector(vec![true, false]), &zeros),
            ["true", "false"]
        );
        let c = Tensor::vector(vec![downpour_tensor::Complex32::new(1.5, 2.0)]);
        assert_eq!(texts(c, &[("precision", 2i64.into())]), ["(1.50,2.00)"]);
        let attrs = [
            ("T", downpour_tensor::DType::Int32.into()),
            ("precision", 1i64.into()),
        ];
        let e = run_op("AsString", vec![Tensor::scalar(1i32)], &attrs).unwrap_err();
        assert!(
            e.message
                .starts_with("precision not supported for datatype int32")
        );
    }
}
