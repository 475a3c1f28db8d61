//! Which settings are left out when a config is written, because they change nothing: older files stay as they were.

pub(crate) fn is_zero<T: PartialEq + From<u8>>(value: &T) -> bool {
    *value == T::from(0)
}

pub(crate) fn is_one<T: PartialEq + From<u8>>(value: &T) -> bool {
    *value == T::from(1)
}

pub(crate) fn is_two<T: PartialEq + From<u8>>(value: &T) -> bool {
    *value == T::from(2)
}

pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}
