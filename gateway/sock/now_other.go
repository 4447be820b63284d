//go:build !linux

package sock

import "errors"

// direct: elsewhere connections are used through package net.
const direct = false

// ReadNow does not work here.
func ReadNow(int, []byte) (int, error) { return 0, errors.ErrUnsupported }

// WriteNow does not work here.
func WriteNow(int, []byte) (int, error) { return 0, errors.ErrUnsupported }
