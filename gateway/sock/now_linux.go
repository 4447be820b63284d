package sock

import (
	"io"
	"syscall"
	"unsafe"
)

// direct: sockets are read and written by their descriptors here.
const direct = true

// ReadNow reads what there is of a socket that does not block. Without any it returns ErrWait, at the end io.EOF. p must
// hold a byte. The scheduler is not told, since the call cannot wait; that spares a third of its cost.
func ReadNow(fd int, p []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch {
		case errno == syscall.EINTR:
			continue
		case errno == syscall.EAGAIN:
			return 0, ErrWait
		case errno != 0:
			return 0, errno
		case n == 0:
			return 0, io.EOF
		}
		return int(n), nil
	}
}

// WriteNow writes what a socket that does not block has room for. Without any it returns ErrWait. p must hold a byte.
func WriteNow(fd int, p []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch {
		case errno == syscall.EINTR:
			continue
		case errno == syscall.EAGAIN:
			return 0, ErrWait
		case errno != 0:
			return 0, errno
		}
		return int(n), nil
	}
}
