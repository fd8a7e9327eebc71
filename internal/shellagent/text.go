package shellagent

import (
	"bytes"
	"unicode/utf8"
)

// text turns a command's bytes into valid UTF-8, in pieces that never split a
// character. Invalid bytes and NUL become U+FFFD, and CR LF becomes LF. A line
// that is rewritten with carriage returns, as progress bars do, loses the
// versions that the next one covers completely: else a long download would
// fill the journal with numbers that nobody will look at.
type text struct {
	rest      []byte // the beginning of a character; at most 3 bytes
	out       []byte // valid and not yet taken
	line      int    // where the current line begins in out
	continued bool   // the beginning of the current line was taken before
}

func (t *text) write(p []byte) {
	if len(t.rest) > 0 {
		p = append(t.rest, p...)
		t.rest = nil
	}
	for len(p) > 0 {
		if n := plain(p); n > 0 {
			t.out = append(t.out, p[:n]...)
			p = p[n:]
			continue
		}
		if p[0] == '\n' {
			t.endLine()
			p = p[1:]
			continue
		}
		if !utf8.FullRune(p) {
			t.rest = append([]byte(nil), p...)
			return
		}
		r, n := utf8.DecodeRune(p)
		if r == 0 {
			r = utf8.RuneError
		}
		t.out = utf8.AppendRune(t.out, r)
		p = p[n:]
	}
}

// plain counts the leading bytes that stay as they are.
func plain(p []byte) int {
	for i, b := range p {
		if b >= utf8.RuneSelf || b == 0 || b == '\n' {
			return i
		}
	}
	return len(p)
}

func (t *text) endLine() {
	for len(t.out) > t.line && t.out[len(t.out)-1] == '\r' {
		t.out = t.out[:len(t.out)-1]
	}
	t.collapse()
	t.out = append(t.out, '\n')
	t.line, t.continued = len(t.out), false
}

// collapse shortens the current line to what can still be seen of it.
func (t *text) collapse() {
	if bytes.IndexByte(t.out[t.line:], '\r') < 0 {
		return
	}
	t.out = append(t.out[:t.line], collapse(t.out[t.line:], t.continued)...)
}

// collapse drops the versions of a line that a later one covers. When the line
// continues one that is shown already, the CR before the first version stays:
// it is what takes the shown part back.
func collapse(line []byte, continued bool) []byte {
	versions := bytes.Split(line, []byte{'\r'})
	kept := versions[:1:1]
	for _, v := range versions[1:] {
		if len(v) == 0 {
			continue
		}
		for len(kept) > 0 && covers(v, kept[len(kept)-1]) {
			if len(kept) == 1 && continued {
				kept[0] = nil
				break
			}
			kept = kept[:len(kept)-1]
		}
		kept = append(kept, v)
	}
	out := bytes.Join(kept, []byte{'\r'})
	if len(versions[len(versions)-1]) == 0 {
		out = append(out, '\r')
	}
	return out
}

// covers says that nothing of old is left when v is written over it.
func covers(v, old []byte) bool {
	return utf8.RuneCount(v) >= utf8.RuneCount(old) || bytes.Contains(v, []byte("\x1b[K")) || bytes.Contains(v, []byte("\x1b[2K"))
}

// take removes and returns at most limit bytes. A CR at the very end waits for
// what follows it, and half a character too, unless this is the last take.
func (t *text) take(limit int, last bool) string {
	if last && len(t.rest) > 0 {
		for range t.rest {
			t.out = utf8.AppendRune(t.out, utf8.RuneError)
		}
		t.rest = nil
	}
	t.collapse()
	n := len(t.out)
	for !last && n > 0 && t.out[n-1] == '\r' {
		n--
	}
	if n > limit {
		n = limit
		for n > 0 && !utf8.RuneStart(t.out[n]) {
			n--
		}
	}
	s := string(t.out[:n])
	t.out = append(t.out[:0], t.out[n:]...)
	if n > t.line {
		t.line, t.continued = 0, true
	} else {
		t.line -= n
	}
	return s
}
