//! Enumerations whose variants have names, which `named!` declares.

/// Declares an enumeration whose variants have names, with the list `ALL` and the function `name`;
/// for the values of an option, also `Display` and `FromStr`.
#[macro_export]
macro_rules! named {
    (
        $(#[$attribute:meta])* pub enum $type:ident {
            $($(#[$about:meta])* $variant:ident = $name:literal,)*
        }
        $(#[$about_all:meta])* $all_vis:vis const ALL;
        $(#[$about_name:meta])* pub fn name;
        $(impl FromStr as $option:literal;)?
    ) => {
        $(#[$attribute])*
        pub enum $type {
            $($(#[$about])* $variant,)*
        }

        impl $type {
            $(#[$about_all])*
            $all_vis const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Names of [`Self::ALL`].
            #[doc(hidden)]
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            $(#[$about_name])*
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        $(
            impl ::std::fmt::Display for $type {
                fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                    f.write_str(self.name())
                }
            }

            impl ::std::str::FromStr for $type {
                type Err = $crate::error::Error;

                fn from_str(text: &str) -> $crate::error::Result<Self> {
                    let found = Self::ALL.into_iter().find(|value| value.name() == text);
                    let unknown = || $crate::error::Error::unknown_name($option, text, Self::NAMES);
                    found.ok_or_else(unknown)
                }
            }
        )?
    };
}
pub use named;
