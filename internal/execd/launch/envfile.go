package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/hang"
)

// EnvFileVariable names the file of variables. Programs get it too, so that
// they can add to the file; the file's own lines can't change it.
const EnvFileVariable = "EXECD_ENVS"

// maxEnvFile bounds what is read of a file of variables.
const maxEnvFile = 1 << 20

// EnvFile reads a file of variables; a missing one has none. An entry is one of
//
//	NAME=value    up to the end of the line, without the space around it
//	NAME="value"  with \n \r \t \\ \", over several lines too
//	NAME='value'  literally, over several lines too
//
// and the last one of a name counts. $VAR and ${VAR} in the first two are the
// daemon's own variables, as far as programs get them. Lines that are empty or
// begin with # say nothing; what can't be read, has a NUL, or is too long for
// any program (128 KiB), is passed over. A file of more than 1 MiB, or whose variables
// put in more than that, is refused. The error says what is wrong with the file,
// never what it holds. A file system that doesn't answer is given up, as in [Prepare].
func EnvFile(ctx context.Context, path string) (map[string]string, error) {
	vars, err := hang.Do(ctx, func() (map[string]string, error) { return readEnv(path) }, nil)
	if errors.Is(err, hang.ErrSilent) {
		err = fmt.Errorf("%s has not answered for %v", path, hang.Patience)
	}
	return vars, err
}

func readEnv(path string) (map[string]string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0) // a FIFO must not hold the daemon up
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !fi.Mode().IsRegular():
		return nil, errors.New(path + " is not a regular file")
	case fi.Size() > maxEnvFile:
		return nil, errors.New(path + " is larger than 1 MiB")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxEnvFile))
	if err != nil {
		return nil, err
	}
	vars, ok := parseEnv(string(b))
	if !ok {
		return nil, errors.New("the variables in " + path + " put in more than 1 MiB")
	}
	return vars, nil
}

// parseEnv gives false where the daemon's variables make too much of the text.
func parseEnv(text string) (map[string]string, bool) {
	vars, own := map[string]string{}, expander{room: maxEnvFile}
	for text != "" {
		line, rest, _ := strings.Cut(text, "\n")
		name, value, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" || strings.HasPrefix(name, "#") {
			text = rest
			continue
		}
		value = strings.TrimSpace(value)
		if strings.HasPrefix(value, `"`) || strings.HasPrefix(value, "'") {
			// From the quote on, which comes first after the =.
			open := strings.IndexByte(text, '=') + 1
			open += strings.IndexAny(text[open:], `"'`)
			after, closed := "", false
			if value, after, closed = own.quoted(text[open:]); !closed {
				text = rest
				continue
			}
			end, next, _ := strings.Cut(after, "\n")
			if ok = strings.TrimSpace(end) == ""; ok {
				rest = next
			}
		} else {
			value = own.expand(value)
		}
		if ok && !strings.ContainsRune(name+value, 0) && len(name+"="+value) <= maxArgument && !private(name) && name != EnvFileVariable {
			vars[name] = value
		}
		text = rest
	}
	return vars, own.room >= 0
}

// expander puts the daemon's variables into values.
type expander struct {
	room int // for more bytes of them; negative: there was too little
}

// quoted reads a value that begins with its quote, and gives what follows the
// closing one; false: there is none.
func (x *expander) quoted(text string) (value, rest string, closed bool) {
	if text[0] == '\'' {
		return strings.Cut(text[1:], "'")
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		c := text[i]
		if c == '"' {
			return x.expand(b.String()), text[i+1:], true
		}
		if c == '\\' && i+1 < len(text) {
			i++
			switch c = text[i]; c {
			case 'n':
				c = '\n'
			case 'r':
				c = '\r'
			case 't':
				c = '\t'
			case '\\', '"':
			default:
				b.WriteByte('\\')
			}
		}
		b.WriteByte(c)
	}
	return "", "", false
}

// expand leaves out the variables that stay with the daemon.
func (x *expander) expand(value string) string {
	return os.Expand(value, func(name string) string {
		if private(name) || x.room < 0 {
			return ""
		}
		v := os.Getenv(name)
		if x.room -= len(v); x.room < 0 {
			return ""
		}
		return v
	})
}
