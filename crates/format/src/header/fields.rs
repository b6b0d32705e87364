//! Reads the JSON of a header in one pass into its fields, without an intermediate tree.
//!
//! Owns the serde visitors. They keep track of where they are, so that `header` can name the tensor
//! and the field of a failure. The meaning of a field, and whether fields fit together, is not
//! decided here.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Unexpected, Visitor};

use super::{Dtype, Entry, HeaderError};

/// Tensors in the order of the header, with offsets as written, and `__metadata__`.
pub(super) type Fields = (Vec<Entry>, BTreeMap<String, String>);

/// Reads the whole text of a header. After an error, `reading` holds the position of the visitors.
pub(super) fn read(text: &str, reading: &mut Reading) -> Result<Fields, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let fields = (&mut json).deserialize_map(HeaderVisitor(reading))?;
    json.end()?;
    Ok(fields)
}

/// Position of the visitors, and the failure if they know more than serde can express.
#[derive(Default)]
pub(super) struct Reading {
    pub(super) place: Place,
    pub(super) failure: Option<HeaderError>,
}

#[derive(Default)]
pub(super) enum Place {
    #[default]
    Top,
    Metadata {
        key: Option<String>,
    },
    Entry {
        tensor: String,
        field: Option<&'static str>,
    },
}

impl Reading {
    /// Records `failure`; the returned error only unwinds the visitors.
    fn fail<E: de::Error>(&mut self, failure: HeaderError) -> E {
        self.failure = Some(failure);
        E::custom("see `Reading::failure`")
    }

    fn enter(&mut self, name: &'static str) {
        if let Place::Entry { field, .. } = &mut self.place {
            *field = Some(name);
        }
    }

    /// Takes the name of the tensor that the visitors are in, and leaves it.
    fn take_tensor(&mut self) -> String {
        match std::mem::take(&mut self.place) {
            Place::Entry { tensor, .. } => tensor,
            Place::Top | Place::Metadata { .. } => String::new(),
        }
    }
}

struct HeaderVisitor<'a>(&'a mut Reading);

impl<'de> Visitor<'de> for HeaderVisitor<'_> {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut tensors = Vec::new();
        let mut metadata = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == "__metadata__" {
                if metadata.is_some() {
                    return Err(self.0.fail(HeaderError::DuplicateMetadata { key: None }));
                }
                self.0.place = Place::Metadata { key: None };
                metadata = Some(map.next_value_seed(MetadataVisitor(self.0))?);
            } else {
                self.0.place = Place::Entry {
                    tensor: key,
                    field: None,
                };
                let (dtype, shape, offsets) = map.next_value_seed(EntryVisitor(self.0))?;
                let name = self.0.take_tensor();
                tensors.push(Entry {
                    name,
                    dtype,
                    shape,
                    range: offsets.0..offsets.1,
                });
            }
        }
        Ok((tensors, metadata.unwrap_or_default()))
    }
}

struct MetadataVisitor<'a>(&'a mut Reading);

impl<'de> de::DeserializeSeed<'de> for MetadataVisitor<'_> {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        // `deserialize_any` is used because the reference reader accepts `null` as no metadata.
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MetadataVisitor<'_> {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            self.0.place = Place::Metadata {
                key: Some(key.clone()),
            };
            let value = map.next_value::<String>()?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(self
                    .0
                    .fail(HeaderError::DuplicateMetadata { key: Some(key) }));
            }
        }
        Ok(metadata)
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Field {
    Dtype,
    Shape,
    DataOffsets,
    #[serde(other)]
    Unknown,
}

struct EntryVisitor<'a>(&'a mut Reading);

type EntryFields = (Dtype, Vec<usize>, (u64, u64));

impl<'de> de::DeserializeSeed<'de> for EntryVisitor<'_> {
    type Value = EntryFields;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EntryVisitor<'_> {
    type Value = EntryFields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EntryFields, A::Error> {
        let reading = self.0;
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key::<Field>()? {
            match field {
                Field::Dtype => {
                    reading.enter("dtype");
                    let name = map.next_value::<String>()?;
                    let Some(known) = Dtype::from_name(&name) else {
                        let tensor = reading.take_tensor();
                        return Err(reading.fail(HeaderError::UnknownDtype {
                            tensor,
                            dtype: name,
                        }));
                    };
                    set(&mut dtype, known)?;
                }
                Field::Shape => {
                    reading.enter("shape");
                    set(&mut shape, map.next_value::<Shape>()?.0)?;
                }
                Field::DataOffsets => {
                    reading.enter("data_offsets");
                    let Offsets(begin, end) = map.next_value()?;
                    set(&mut offsets, (begin, end))?;
                }
                Field::Unknown => {
                    map.next_value::<AnyValue>()?;
                }
            }
            if let Place::Entry { field, .. } = &mut reading.place {
                *field = None;
            }
        }
        let missing = <A::Error as de::Error>::missing_field;
        Ok((
            dtype.ok_or_else(|| missing("dtype"))?,
            shape.ok_or_else(|| missing("shape"))?,
            offsets.ok_or_else(|| missing("data_offsets"))?,
        ))
    }
}

/// Sets `field`; fails if it is already set.
fn set<T, E: de::Error>(field: &mut Option<T>, value: T) -> Result<(), E> {
    match field.replace(value) {
        Some(_) => Err(E::custom("found it twice, wanted it once")),
        None => Ok(()),
    }
}

/// A dimension or an offset. JSON has no integer type: -1, 1.5 and 1e30 must be rejected.
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct CountVisitor;

        impl Visitor<'_> for CountVisitor {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 0 to {}", u64::MAX)
            }

            fn visit_u64<E>(self, value: u64) -> Result<Count, E> {
                Ok(Count(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Count, E> {
                Err(E::invalid_value(Unexpected::Signed(value), &self))
            }
        }

        json.deserialize_u64(CountVisitor)
    }
}

struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct ShapeVisitor;

        impl<'de> Visitor<'de> for ShapeVisitor {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(Count(dimension)) = seq.next_element()? {
                    shape.push(usize::try_from(dimension).map_err(|_| {
                        let found = Unexpected::Unsigned(dimension);
                        <A::Error as de::Error>::invalid_value(found, &"a dimension in memory")
                    })?);
                }
                Ok(Shape(shape))
            }
        }

        json.deserialize_seq(ShapeVisitor)
    }
}

struct Offsets(u64, u64);

impl<'de> Deserialize<'de> for Offsets {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct OffsetsVisitor;

        impl<'de> Visitor<'de> for OffsetsVisitor {
            type Value = Offsets;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two offsets, [begin, end]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Offsets, A::Error> {
                let wrong = |found| <A::Error as de::Error>::invalid_length(found, &self);
                let Count(begin) = seq.next_element()?.ok_or_else(|| wrong(0))?;
                let Count(end) = seq.next_element()?.ok_or_else(|| wrong(1))?;
                match seq.next_element::<AnyValue>()? {
                    Some(_) => Err(wrong(3)),
                    None => Ok(Offsets(begin, end)),
                }
            }
        }

        json.deserialize_seq(OffsetsVisitor)
    }
}

/// A value that the format does not prescribe. Only whole numbers are kept.
///
/// Not `serde::de::IgnoredAny`: `serde_json` skips over that one without checks, so that nesting is
/// not limited, and accepts bad escapes and numbers that the reference reader rejects.
#[derive(Default)]
pub(crate) struct AnyValue {
    pub(crate) whole: Option<u64>,
}

impl<'de> Deserialize<'de> for AnyValue {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct AnyVisitor;

        impl<'de> Visitor<'de> for AnyVisitor {
            type Value = AnyValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E>(self) -> Result<AnyValue, E> {
                Ok(AnyValue::default())
            }

            fn visit_bool<E>(self, _: bool) -> Result<AnyValue, E> {
                Ok(AnyValue::default())
            }

            fn visit_u64<E>(self, value: u64) -> Result<AnyValue, E> {
                Ok(AnyValue { whole: Some(value) })
            }

            fn visit_i64<E>(self, _: i64) -> Result<AnyValue, E> {
                Ok(AnyValue::default())
            }

            fn visit_f64<E>(self, _: f64) -> Result<AnyValue, E> {
                Ok(AnyValue::default())
            }

            fn visit_str<E>(self, _: &str) -> Result<AnyValue, E> {
                Ok(AnyValue::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<AnyValue, A::Error> {
                while seq.next_element::<AnyValue>()?.is_some() {}
                Ok(AnyValue::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AnyValue, A::Error> {
                while map.next_entry::<AnyValue, AnyValue>()?.is_some() {}
                Ok(AnyValue::default())
            }
        }

        json.deserialize_any(AnyVisitor)
    }
}
