package shellagent

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// The commands run as the account that owns the state files and may put anything
// in their place. It costs them their session and nothing else: in particular a
// FIFO, which is opened only when somebody opens its other end, never holds up
// the agent.

// maxState is the most that is read of a state file.
const maxState = 64 << 20

var errNotRegular = errors.New("not a regular file")

// openState opens a state file; what isn't a regular file is errNotRegular.
func openState(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	if errors.Is(err, unix.ENXIO) { // a FIFO that nobody reads, or a socket
		return nil, fmt.Errorf("%s: %w", path, errNotRegular)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, errNotRegular)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// readState reads a state file.
func readState(path string) ([]byte, error) {
	f, err := openState(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err == nil && len(b) > maxState {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxState)
	}
	return b, err
}

// replaceFile writes a file that is readable for its owner only, by rename.
func replaceFile(path string, content []byte) error {
	tmp := path + ".tmp"
	_ = os.Remove(tmp) // an earlier one's, or nothing
	err := write(tmp, content)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// write makes a new file.
func write(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}
