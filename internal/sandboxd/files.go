package sandboxd

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Files below <state>/sandboxd.
const (
	fileLock         = "lock"         // held while a service uses the directory
	fileKey          = "key"          // the API key, mode 0600
	fileListen       = "listen.json"  // where the service listens; absent while none does
	fileInstallation = "installation" // six characters that names on the host carry
	fileDatabase     = "sandboxes.db"
	fileLog          = "log"
)

// Dir is the service's directory in a state directory.
func Dir(stateDir string) string { return filepath.Join(stateDir, "sandboxd") }

// MakeDir makes the service's directory where it is missing, and refuses one
// that others could change: they would choose what this process, root as a rule,
// reads, writes and deletes.
func MakeDir(stateDir string) error {
	dir := Dir(stateDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for path, closed := range map[string]fs.FileMode{stateDir: 0o022, dir: 0o077} {
		info, err := os.Lstat(path)
		if err == nil && path == stateDir && info.Mode().Type() == fs.ModeSymlink {
			info, err = os.Stat(path)
		}
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		switch {
		case !info.IsDir():
			return fmt.Errorf("%s is not a directory", path)
		case ok && int(st.Uid) != os.Geteuid():
			return fmt.Errorf("%s belongs to user %d, who could change what is kept there; give it to user %d or choose another state directory", path, st.Uid, os.Geteuid())
		case info.Mode().Perm()&closed != 0:
			return fmt.Errorf("%s is open to others (mode %#o); run: chmod 700 %s", path, info.Mode().Perm(), path)
		}
	}
	return nil
}

// ListenFile is the path of the file that says where the service of a state
// directory listens.
func ListenFile(stateDir string) string { return filepath.Join(Dir(stateDir), fileListen) }

// KeyFile is the path of the file with the API key.
func KeyFile(stateDir string) string { return filepath.Join(Dir(stateDir), fileKey) }

// LogFile is the path of the service's log.
func LogFile(stateDir string) string { return filepath.Join(Dir(stateDir), fileLog) }

// Listening is the content of ListenFile.
type Listening struct {
	URL     string `json:"url"` // base of the API, such as http://127.0.0.1:40123/v1
	PID     int    `json:"pid"`
	Version string `json:"version"`
}

// ReadListening reads ListenFile. A missing file is fs.ErrNotExist.
func ReadListening(stateDir string) (Listening, error) {
	var l Listening
	b, err := os.ReadFile(ListenFile(stateDir))
	if err != nil {
		return l, err
	}
	if err := json.Unmarshal(b, &l); err != nil || l.URL == "" {
		return l, fmt.Errorf("%s can't be read: %w", ListenFile(stateDir), errors.Join(err, fs.ErrInvalid))
	}
	return l, nil
}

// ReadKey gives the API key, which it makes when it is missing. A file that
// others may read is refused: the key must be taken as known to them.
func ReadKey(stateDir string) (string, error) {
	path := KeyFile(stateDir)
	return readOrMake(path, func() string {
		var b [32]byte
		_, _ = rand.Read(b[:]) // never fails
		return base64.RawURLEncoding.EncodeToString(b[:])
	}, func(s string) error {
		if len(s) < 16 || strings.IndexFunc(s, func(c rune) bool { return c <= ' ' || c > '~' }) >= 0 {
			return fmt.Errorf("%s holds no usable key; remove it and start again for a new one", path)
		}
		info, err := os.Stat(path)
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			return fmt.Errorf("%s may be read by others (mode %#o); remove it and start again for a new key", path, info.Mode().Perm())
		}
		return err
	})
}

var installationForm = regexp.MustCompile(`^[a-z2-7]{6}$`)

// installation gives the six characters that this installation's names on the
// host carry. They must stay the same, or its sandboxes would be strangers.
func installation(stateDir string) (string, error) {
	path := filepath.Join(Dir(stateDir), fileInstallation)
	return readOrMake(path, func() string { return strings.ToLower(rand.Text()[:6]) }, func(s string) error {
		if !installationForm.MatchString(s) {
			return fmt.Errorf("%s must hold six characters of a-z and 2-7", path)
		}
		return nil
	})
}

// readOrMake reads a small file, which it makes whole, with mode 0600, when it
// is missing. Of several makers one wins.
func readOrMake(path string, fresh func() string, check func(string) error) (string, error) {
	for range 2 {
		b, err := os.ReadFile(path)
		if err == nil {
			s := strings.TrimSpace(string(b))
			return s, check(s)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		tmp, err := writeTemp(path, []byte(fresh()+"\n"))
		if err != nil {
			return "", err
		}
		err = os.Link(tmp, path) // fails when somebody was first
		os.Remove(tmp)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("%s appears and disappears", path)
}

// writeTemp writes a file beside path, mode 0600, on the disk when it returns.
func writeTemp(path string, content []byte) (tmp string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-") // mode 0600
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// writeListening replaces ListenFile in one step.
func writeListening(stateDir string, l Listening) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	tmp, err := writeTemp(ListenFile(stateDir), append(b, '\n'))
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, ListenFile(stateDir)); err != nil {
		os.Remove(tmp)
		return err
	}
	return nil
}

// ErrLocked: another service uses the state directory.
var ErrLocked = errors.New("another sandboxd uses this state directory")

// lock takes the state directory for this process. The kernel gives it back
// when the process ends, however it ends; children don't inherit it. It is an
// open-file-description lock, so that Locked can ask without taking it.
func lock(stateDir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(Dir(stateDir), fileLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		f.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, fmt.Errorf("%s: %w", Dir(stateDir), ErrLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", Dir(stateDir), err)
	}
	return f, nil
}

// Locked reports whether a service uses the state directory.
func Locked(stateDir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(Dir(stateDir), fileLock), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, fmt.Errorf("lock %s: %w", Dir(stateDir), err)
	}
	return l.Type != unix.F_UNLCK, nil
}
