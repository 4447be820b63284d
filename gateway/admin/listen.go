package admin

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// maxSocketPath is what the kernel's sockaddr_un holds, less its final zero,
// less the suffix under which a socket is made.
const maxSocketPath = 107 - len(socketSuffix)

const socketSuffix = ".new"

// ListenUnix listens on a Unix socket with mode 0600, making its directory
// (0700) if needed. The socket is bound under another name and renamed, so it
// is never there with a wider mode. A socket left by a dead server is
// replaced; a live one is ErrInUse. Close removes the file.
func ListenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("%w: the socket's path has %d bytes, the kernel takes %d; choose a shorter data directory", ErrConfig, len(path), maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("control socket %s: %w; stop it, or choose another data directory", path, ErrInUse)
	}
	fresh := path + socketSuffix
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	ln.SetUnlinkOnClose(false) // it would remove the name it was bound to
	if err = os.Chmod(fresh, 0o600); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		ln.Close()
		os.Remove(fresh)
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &unixListener{UnixListener: ln, path: path}, nil
}

type unixListener struct {
	*net.UnixListener
	path string
	once sync.Once
}

func (l *unixListener) Close() error {
	var err error
	l.once.Do(func() {
		os.Remove(l.path)
		err = l.UnixListener.Close()
	})
	return err
}
