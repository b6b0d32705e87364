//! Sets of CPUs, and the lists that the kernel writes of them. Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Highest CPU number that a list may have: more than any kernel supports.
const CPU_MAX: usize = 1 << 16;

/// Set of CPUs by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(BTreeSet<usize>);

impl Cpus {
    /// Number of CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Numbers of the CPUs, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// Returns whether a CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// Returns the CPUs of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }
}

impl FromIterator<usize> for Cpus {
    fn from_iter<T: IntoIterator<Item = usize>>(cpus: T) -> Self {
        Self(cpus.into_iter().collect())
    }
}

/// Text that is no list of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCpuList;

impl FromStr for Cpus {
    type Err = NoCpuList;

    /// Parses a list as in `/sys`: `0-3,8,10-11`; an empty one is valid.
    fn from_str(text: &str) -> Result<Self, NoCpuList> {
        let number = |text: &str| {
            let number = text.parse::<usize>().map_err(|_| NoCpuList)?;
            if number <= CPU_MAX {
                Ok(number)
            } else {
                Err(NoCpuList)
            }
        };
        let mut cpus = BTreeSet::new();
        let text = text.trim();
        let parts = text.split(',').filter(|_| !text.is_empty());
        for part in parts {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(NoCpuList);
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for Cpus {
    /// Writes the list as the kernel does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed_and_written() {
        for (text, expected, written) in [
            ("0", vec![0], "0"),
            ("0-3\n", vec![0, 1, 2, 3], "0-3"),
            ("0-1,4,6-7", vec![0, 1, 4, 6, 7], "0-1,4,6-7"),
            ("3,1-2", vec![1, 2, 3], "1-3"),
            ("5-5,5", vec![5], "5"),
            ("\n", vec![], ""),
            ("", vec![], ""),
        ] {
            let cpus: Cpus = text.parse().expect(text);
            assert_eq!(cpus.iter().collect::<Vec<_>>(), expected, "{text:?}");
            assert_eq!(cpus.to_string(), written, "{text:?}");
        }
    }

    #[test]
    fn garbage_is_no_list() {
        for text in [
            "x",
            "1-",
            "-1",
            "3-1",
            "1,,2",
            ",",
            "0-99999999999",
            "1-2-3",
            "0x1",
            "70000",
        ] {
            assert_eq!(text.parse::<Cpus>(), Err(NoCpuList), "{text:?}");
        }
    }
}
