//! Encodings of values: one [`Encoding`] for each encoding, and macros for structs and enums.

use crate::error::CodecError;

type Coded<T> = Result<T, CodecError>;

/// An encoding of values of a type: [`Encoding::put`] appends it, [`Encoding::take`] reads it.
pub(super) trait Encoding<T> {
    fn put(value: &T, out: &mut Vec<u8>) -> Coded<()>;

    /// Reads a value from the beginning of the bytes.
    fn take(from: &mut &[u8]) -> Coded<T>;
}

/// The encoding of a type that has only one.
pub(super) struct DefaultEncoding;
/// `bytes` with a length limit.
pub(super) struct Bytes<const MAX: usize>;
/// As [`Bytes`], in UTF-8.
pub(super) struct Text<const MAX: usize>;
/// `list` with a limit on the items, each of this form.
pub(super) struct List<const MAX: usize, F = DefaultEncoding>(std::marker::PhantomData<F>);
/// `option` of this form.
pub(super) struct OptionOf<F = DefaultEncoding>(std::marker::PhantomData<F>);

/// An enum whose variants are numbered.
pub(super) trait Tagged: Sized {
    fn tag(&self) -> u16;
    fn put_fields(&self, out: &mut Vec<u8>) -> Coded<()>;
    fn take_fields(tag: u16, from: &mut &[u8]) -> Coded<Self>;
}

/// The form of a field: the named one, by default its own.
macro_rules! form {
    () => {
        $crate::journal::codec::forms::DefaultEncoding
    };
    ($form:ty) => {
        $form
    };
}
pub(super) use form;

/// Encodes structs as their fields in this order. `; only = true`: a field that is not encoded, and
/// its value after decoding.
macro_rules! fields {
    ($($type:ident { $($field:tt $(: $form:ty)?),* $(; $unwritten:ident = $value:expr)? })*) => {$(
        impl Encoding<$type> for DefaultEncoding {
            fn put(value: &$type, out: &mut Vec<u8>) -> Coded<()> {
                $(<forms::form!($($form)?) as Encoding<_>>::put(&value.$field, out)?;)*
                Ok(())
            }

            fn take(from: &mut &[u8]) -> Coded<$type> {
                Ok($type {
                    $($field: <forms::form!($($form)?) as Encoding<_>>::take(from)?),*
                    $(, $unwritten: $value)?
                })
            }
        }
    )*};
}
pub(super) use fields;

/// Encodes enums as the number of the variant, then its fields. `(0)`: a byte before the fields
/// that distinguishes variants of one number. `; only = true`: the value of a field implied by the
/// number.
macro_rules! variants {
    ($($type:ident { $(
        $tag:literal $(($byte:literal))? $variant:ident
        $({ $($field:ident $(: $form:ty)?),* $(; $fixed:ident = $value:literal)? })?
        $(( $($item:ident: $of:ty),* ))?
    ),* $(,)? })*) => {$(
        impl Tagged for $type {
            fn tag(&self) -> u16 {
                match self {
                    $($type::$variant { $($($fixed: $value,)?)? .. } => $tag,)*
                }
            }

            #[allow(unused_variables)]
            fn put_fields(&self, out: &mut Vec<u8>) -> Coded<()> {
                match self {
                    $($type::$variant
                    $({ $($field),* $(, $fixed: $value)? })?
                    $(( $($item),* ))? => {
                        $(out.push($byte);)?
                        $($(<forms::form!($($form)?) as Encoding<_>>::put($field, out)?;)*)?
                        $($(<$of as Encoding<_>>::put($item, out)?;)*)?
                    })*
                }
                Ok(())
            }

            #[allow(unused_variables)]
            fn take_fields(tag: u16, from: &mut &[u8]) -> Coded<$type> {
                Ok(match tag {
                    $($tag $(if forms::eat(from, $byte))? => $type::$variant
                    $({
                        $($field: <forms::form!($($form)?) as Encoding<_>>::take(from)?),*
                        $(, $fixed: $value)?
                    })?
                    $(( $(<$of as Encoding<_>>::take(from)?),* ))?,)*
                    _ => return Err(CodecError::Unknown),
                })
            }
        }
    )*};
}
pub(super) use variants;

impl<T: Tagged> Encoding<T> for DefaultEncoding {
    fn put(value: &T, out: &mut Vec<u8>) -> Coded<()> {
        out.push(value.tag() as u8);
        value.put_fields(out)
    }

    fn take(from: &mut &[u8]) -> Coded<T> {
        let tag = byte(from)?;
        T::take_fields(u16::from(tag), from)
    }
}

fn byte(from: &mut &[u8]) -> Coded<u8> {
    let (&byte, rest) = from.split_first().ok_or(CodecError::Short)?;
    *from = rest;
    Ok(byte)
}

/// Consumes this byte if it is next.
pub(super) fn eat(from: &mut &[u8], byte: u8) -> bool {
    let rest = from.strip_prefix(&[byte]);
    *from = rest.unwrap_or(from);
    rest.is_some()
}

pub(super) fn put_uint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

impl Encoding<u64> for DefaultEncoding {
    fn put(value: &u64, out: &mut Vec<u8>) -> Coded<()> {
        put_uint(*value, out);
        Ok(())
    }

    fn take(from: &mut &[u8]) -> Coded<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = byte(from)?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has one significant bit, and a final zero byte would be a second
            // encoding of the same number.
            if (shift == 63 && bits > 1) || (byte == 0 && shift > 0) {
                return Err(CodecError::Range);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CodecError::Range)
    }
}

impl Encoding<u32> for DefaultEncoding {
    fn put(value: &u32, out: &mut Vec<u8>) -> Coded<()> {
        DefaultEncoding::put(&u64::from(*value), out)
    }

    fn take(from: &mut &[u8]) -> Coded<u32> {
        let value: u64 = DefaultEncoding::take(from)?;
        u32::try_from(value).map_err(|_| CodecError::Range)
    }
}

impl Encoding<i64> for DefaultEncoding {
    fn put(value: &i64, out: &mut Vec<u8>) -> Coded<()> {
        DefaultEncoding::put(&(((value << 1) ^ (value >> 63)) as u64), out)
    }

    fn take(from: &mut &[u8]) -> Coded<i64> {
        let value: u64 = DefaultEncoding::take(from)?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

impl Encoding<bool> for DefaultEncoding {
    fn put(value: &bool, out: &mut Vec<u8>) -> Coded<()> {
        out.push(u8::from(*value));
        Ok(())
    }

    fn take(from: &mut &[u8]) -> Coded<bool> {
        match byte(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(CodecError::Unknown),
        }
    }
}

impl Encoding<[u8; 32]> for DefaultEncoding {
    fn put(value: &[u8; 32], out: &mut Vec<u8>) -> Coded<()> {
        out.extend_from_slice(value);
        Ok(())
    }

    fn take(from: &mut &[u8]) -> Coded<[u8; 32]> {
        let (value, rest) = from.split_first_chunk().ok_or(CodecError::Short)?;
        *from = rest;
        Ok(*value)
    }
}

/// Reads a length or count of at most `max`.
fn count(from: &mut &[u8], max: usize) -> Coded<usize> {
    let value: u64 = DefaultEncoding::take(from)?;
    let value = usize::try_from(value).map_err(|_| CodecError::Range)?;
    if value > max {
        Err(CodecError::Limit)
    } else {
        Ok(value)
    }
}

fn put_count(count: usize, max: usize, out: &mut Vec<u8>) -> Coded<()> {
    if count > max {
        return Err(CodecError::Limit);
    }
    DefaultEncoding::put(&(count as u64), out)
}

impl<const MAX: usize> Bytes<MAX> {
    /// Returns the bytes without copying them.
    pub fn part<'a>(from: &mut &'a [u8]) -> Coded<&'a [u8]> {
        let length = count(from, MAX)?;
        let (bytes, rest) = from.split_at_checked(length).ok_or(CodecError::Short)?;
        *from = rest;
        Ok(bytes)
    }

    pub fn put(bytes: &[u8], out: &mut Vec<u8>) -> Coded<()> {
        put_count(bytes.len(), MAX, out)?;
        out.extend_from_slice(bytes);
        Ok(())
    }
}

impl<const MAX: usize> Encoding<Vec<u8>> for Bytes<MAX> {
    fn put(bytes: &Vec<u8>, out: &mut Vec<u8>) -> Coded<()> {
        Bytes::<MAX>::put(bytes, out)
    }

    fn take(from: &mut &[u8]) -> Coded<Vec<u8>> {
        Bytes::<MAX>::part(from).map(<[u8]>::to_vec)
    }
}

impl<const MAX: usize> Encoding<String> for Text<MAX> {
    fn put(text: &String, out: &mut Vec<u8>) -> Coded<()> {
        Bytes::<MAX>::put(text.as_bytes(), out)
    }

    fn take(from: &mut &[u8]) -> Coded<String> {
        let bytes = Bytes::<MAX>::part(from)?;
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| CodecError::Text)
    }
}

impl<const MAX: usize, T, F: Encoding<T>> Encoding<Vec<T>> for List<MAX, F> {
    fn put(items: &Vec<T>, out: &mut Vec<u8>) -> Coded<()> {
        put_count(items.len(), MAX, out)?;
        items.iter().try_for_each(|item| F::put(item, out))
    }

    /// Each item uses at least one byte, so a count above the remaining bytes is rejected before
    /// memory is allocated.
    fn take(from: &mut &[u8]) -> Coded<Vec<T>> {
        let count = count(from, MAX)?;
        if count > from.len() {
            return Err(CodecError::Short);
        }
        let mut items = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            items.push(F::take(from)?);
        }
        Ok(items)
    }
}

impl<T, F: Encoding<T>> Encoding<Option<T>> for OptionOf<F> {
    fn put(value: &Option<T>, out: &mut Vec<u8>) -> Coded<()> {
        DefaultEncoding::put(&value.is_some(), out)?;
        value.as_ref().map_or(Ok(()), |value| F::put(value, out))
    }

    fn take(from: &mut &[u8]) -> Coded<Option<T>> {
        let is_some: bool = DefaultEncoding::take(from)?;
        if is_some {
            F::take(from).map(Some)
        } else {
            Ok(None)
        }
    }
}

impl<A, B, F: Encoding<A>, G: Encoding<B>> Encoding<(A, B)> for (F, G) {
    fn put((one, other): &(A, B), out: &mut Vec<u8>) -> Coded<()> {
        F::put(one, out)?;
        G::put(other, out)
    }

    fn take(from: &mut &[u8]) -> Coded<(A, B)> {
        Ok((F::take(from)?, G::take(from)?))
    }
}
