package slo

import (
	"errors"
	"fmt"
)

// ErrUnknownName is wrapped by every parse error of this package. The text lists the names that are accepted.
var ErrUnknownName = errors.New("slo: unknown name")

// Class is the urgency of a request. A lower number is more urgent, so classes compare with <.
// The zero value is Interactive. Safe for concurrent use, being a value.
type Class uint8

// The classes, most urgent first.
const (
	Interactive Class = iota
	Standard
	Batch
	// NumClasses is the size of an array with one place a class.
	NumClasses = 3
)

var classNames = [NumClasses]string{"interactive", "standard", "batch"}

// Classes returns every class, most urgent first.
func Classes() [NumClasses]Class { return [NumClasses]Class{Interactive, Standard, Batch} }

// String returns the name, or "class(n)" for a value out of range.
func (c Class) String() string {
	if int(c) < NumClasses {
		return classNames[c]
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// Valid reports whether c is one of the classes.
func (c Class) Valid() bool { return int(c) < NumClasses }

// ParseClass turns a name into a class; an unknown one returns an error that wraps ErrUnknownName.
func ParseClass(name string) (Class, error) {
	for i, n := range classNames {
		if n == name {
			return Class(i), nil
		}
	}
	return Standard, fmt.Errorf("%w: class %q; use interactive, standard or batch", ErrUnknownName, name)
}

// MarshalText returns the name; a value out of range is an error.
func (c Class) MarshalText() ([]byte, error) {
	if !c.Valid() {
		return nil, fmt.Errorf("%w: class number %d", ErrUnknownName, uint8(c))
	}
	return []byte(classNames[c]), nil
}

// UnmarshalText is ParseClass.
func (c *Class) UnmarshalText(text []byte) error {
	got, err := ParseClass(string(text))
	if err != nil {
		return err
	}
	*c = got
	return nil
}
