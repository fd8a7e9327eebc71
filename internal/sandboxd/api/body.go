package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// decode reads a body of one JSON value, which has to arrive within bodyTime.
// What reading would change in silence is refused: bytes that aren't UTF-8, half
// of a pair of escapes, and a name that an object has twice.
func decode(w http.ResponseWriter, r *http.Request, out any) error {
	conn := http.NewResponseController(w)
	if err := conn.SetReadDeadline(time.Now().Add(bodyTime)); err == nil {
		// What the server itself reads later, to notice a client that went
		// away, has no deadline.
		defer func() { _ = conn.SetReadDeadline(time.Time{}) }()
	}
	b, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return refuse(http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE", fmt.Sprintf("the body is larger than %d bytes", bodyLimit))
	case err != nil:
		return invalid("the body can't be read: %v", err)
	case len(bytes.TrimSpace(b)) == 0:
		return invalid("the body is empty")
	case !utf8.Valid(b):
		return invalid("the body isn't valid UTF-8")
	}
	if err := json.Unmarshal(b, out); err != nil {
		return invalid("the body can't be read as JSON: %v", err)
	}
	if halfPair(b) {
		return invalid("the body has half of a surrogate pair, such as \\ud83d alone, which is no character")
	}
	if name, twice := repeated(b); twice {
		return invalid("the body has %q twice in one object", name)
	}
	return nil
}

// halfPair reports whether valid JSON escapes one half of a surrogate pair
// without the other.
func halfPair(b []byte) bool {
	for {
		_, rest, ok := bytes.Cut(b, []byte(`\`))
		if !ok {
			return false
		}
		first, ok := escaped(rest)
		switch {
		case !ok:
			b = rest[1:] // of what is escaped otherwise, a backslash too
			continue
		case !utf16.IsSurrogate(first):
			b = rest[5:]
			continue
		}
		after, ok := bytes.CutPrefix(rest[5:], []byte(`\`))
		if !ok {
			return true
		}
		if second, ok := escaped(after); !ok || utf16.DecodeRune(first, second) == utf8.RuneError {
			return true
		}
		b = after[5:]
	}
}

// escaped gives the number in what follows the backslash of valid JSON's uXXXX.
func escaped(b []byte) (rune, bool) {
	if len(b) < 5 || b[0] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[1:5]), 16, 16)
	return rune(n), err == nil
}

// repeated finds a name that an object of valid JSON has twice.
func repeated(b []byte) (name string, twice bool) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var open []map[string]bool // of the objects and, nil, arrays around
	key := false               // a name comes next
	for {
		t, err := d.Token()
		if err != nil {
			return "", false // the end
		}
		switch v := t.(type) {
		case json.Delim:
			switch v {
			case '{':
				open = append(open, map[string]bool{})
			case '[':
				open = append(open, nil)
			default:
				open = open[:len(open)-1]
			}
		case string:
			if key {
				names := open[len(open)-1]
				if names[v] {
					return v, true
				}
				names[v] = true
				key = false
				continue
			}
		}
		key = len(open) > 0 && open[len(open)-1] != nil
	}
}
