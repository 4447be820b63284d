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
	n, err := now(syscall.SYS_READ, fd, p)
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// WriteNow writes what a socket that does not block has room for. Without any it returns ErrWait. p must hold a byte.
func WriteNow(fd int, p []byte) (int, error) { return now(syscall.SYS_WRITE, fd, p) }

// now makes a call that cannot wait, again when a signal came between.
func now(call uintptr, fd int, p []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, ErrWait
		default:
			return 0, errno
		}
	}
}
