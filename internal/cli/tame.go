package cli

import (
	"io"
	"strings"
	"unicode"
)

// tame is a writer to a terminal for text that a hostile sandbox may have made.
// Colours and erased line ends pass; every other control sequence is left out:
// a terminal answers some of them by typing into the shell that comes next, and
// others set the clipboard or the title. Sequences may come in pieces, runes
// come whole. It is for one goroutine.
type tame struct {
	w     io.Writer
	state func(*tame, rune, *strings.Builder)
	seq   strings.Builder // of the parameters of a control sequence
	long  int             // of a string that is left out
}

// Bounds of a sequence; what is longer was none.
const (
	maxSequence = 128
	maxControl  = 4096
)

func newTame(w io.Writer) *tame { return &tame{w: w, state: (*tame).text} }

func (t *tame) Write(p []byte) (int, error) {
	var out strings.Builder
	out.Grow(len(p))
	for _, r := range string(p) {
		t.state(t, r, &out)
	}
	if _, err := io.WriteString(t.w, out.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (t *tame) text(r rune, out *strings.Builder) {
	switch {
	case r == 0x1b:
		t.state = (*tame).escape
	case r == 0x9b:
		t.begin()
	case r == 0x90 || r == 0x98 || r >= 0x9d && r <= 0x9f:
		t.state, t.long = (*tame).hidden, 0
	case r == '\n' || r == '\r' || r == '\t' || r == '\b' || !unicode.IsControl(r):
		out.WriteRune(r)
	}
}

func (t *tame) begin() {
	t.seq.Reset()
	t.state = (*tame).parameters
}

// escape is after ESC.
func (t *tame) escape(r rune, out *strings.Builder) {
	switch {
	case r == '[':
		t.begin()
	case strings.ContainsRune("]PX^_", r):
		t.state, t.long = (*tame).hidden, 0
	case r >= 0x20 && r <= 0x2f || r == 0x1b: // more of it follows
	case unicode.IsControl(r):
		t.state = (*tame).text
		t.text(r, out)
	default:
		t.state = (*tame).text
	}
}

// parameters is after ESC [.
func (t *tame) parameters(r rune, out *strings.Builder) {
	switch {
	case r >= 0x20 && r <= 0x3f && t.seq.Len() < maxSequence:
		t.seq.WriteRune(r)
		return
	case (r == 'm' || r == 'K') && strings.Trim(t.seq.String(), "0123456789;:") == "":
		out.WriteString("\x1b[" + t.seq.String() + string(r))
	case unicode.IsControl(r):
		t.state = (*tame).text
		t.text(r, out)
		return
	}
	t.state = (*tame).text
}

// hidden is in a string for the terminal, which ends with BEL or ESC \.
func (t *tame) hidden(r rune, _ *strings.Builder) {
	switch t.long++; {
	case r == 0x1b:
		t.state = (*tame).escape
	case r == '\a' || r == 0x9c || t.long >= maxControl:
		t.state = (*tame).text
	}
}
