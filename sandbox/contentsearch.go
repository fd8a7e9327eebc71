package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// ContentQuery says what to look for in files.
type ContentQuery struct {
	// Text is looked for as it is, or as a regular expression of RE2 syntax
	// (package regexp). It is matched within lines, whose ends \A and \z mean
	// too: never empty, without a newline, at most 1 KiB.
	Text       string
	Regexp     bool
	IgnoreCase bool // as Unicode folds; in a plain text of ASCII, as ASCII does
	// Name is a glob for base names, as Files.Search takes it; "" means all.
	Name string
	// Max bounds how many matching lines are given: 0 means 1,000, at most 100,000.
	Max int
	// MaxSize leaves out files of more bytes; 0 means 64 MiB.
	MaxSize int64
}

// ContentMatch is a line that matched. A line that matches several times is
// given once, with its first match.
type ContentMatch struct {
	Path   string
	Line   int64 // from 1
	Offset int64 // of the match in the file, in bytes
	// Text is the line without its end, or of a long one some 512 bytes around
	// the match; the match is Text[Start:End]. It holds the file's bytes, which
	// may not be UTF-8.
	Text       string
	Start, End int
}

// ContentSearcher is what a Files may have beside its methods; use the function
// [SearchContent].
type ContentSearcher interface {
	// SearchContent has the contract of the function SearchContent.
	SearchContent(ctx context.Context, root string, q ContentQuery) (iter.Seq2[ContentMatch, error], error)
}

// SearchContent yields the lines below root that match, file by file in the
// order of List, links not followed. Left out are files that hold a NUL within
// their first 8 KiB (binary ones), are larger than MaxSize, vanish meanwhile or
// can't be read. The sequence ends without an error when there is no more, or
// at Max; ctx ends it with its error. Memory is bounded: a line of more than
// 128 KiB is searched in parts that overlap by 4 KiB, so that a longer match in
// it may be missed, and ^ and $ match at the ends of a part.
//
// Where f isn't a [ContentSearcher] the files are listed, opened and read one
// by one.
func SearchContent(ctx context.Context, f Files, root string, q ContentQuery) (iter.Seq2[ContentMatch, error], error) {
	m, err := q.Compile()
	if err != nil {
		return nil, &PathError{Op: "search", Path: root, Err: fmt.Errorf("%w: %w", ErrPathRejected, err)}
	}
	if s, ok := f.(ContentSearcher); ok {
		return s.SearchContent(ctx, root, q)
	}
	list, err := f.Search(ctx, root, m.Name)
	if err != nil {
		return nil, err
	}
	return func(yield func(ContentMatch, error) bool) {
		confined, left := f.Beneath(root), m.Max
		for info, err := range list {
			if err != nil {
				yield(ContentMatch{}, err)
				return
			}
			if !info.Mode.IsRegular() || info.Size > m.MaxSize {
				continue
			}
			found := func(c ContentMatch) bool {
				left--
				c.Path = info.Path
				return yield(c, nil) && left > 0
			}
			switch ended, err := m.scanFile(ctx, confined, info.Path, found); {
			case err != nil:
				yield(ContentMatch{}, err)
				return
			case ended:
				return
			}
		}
	}, nil
}

// scanFile passes over what can't be read.
func (m *ContentMatcher) scanFile(ctx context.Context, f Files, path string, found func(ContentMatch) bool) (ended bool, err error) {
	r, err := f.Open(ctx, path, 0, m.MaxSize)
	if err == nil {
		defer r.Close() //nolint:errcheck // read only
		ended, err = m.Scan(r, found)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrPathRejected) {
		err = nil
	}
	return ended, err
}

// ContentMatcher is a compiled ContentQuery, for those who implement a
// [ContentSearcher] where the files are. Its Max and MaxSize are never 0, its
// Name never empty. It must not be used by several goroutines at once.
type ContentMatcher struct {
	ContentQuery
	literal []byte         // what to look for, when that is all
	low     []byte         // room for a piece in lower case, as literal is then
	re      *regexp.Regexp // else
	buf     []byte
}

const (
	scanBuffer  = 128 << 10 // a longer line is searched in parts
	scanOverlap = 4 << 10
	scanShown   = 512
	scanProbe   = 8 << 10 // where a NUL means a binary file
	foldPiece   = 4 << 10
)

// Compile checks a query. Its errors are [*Error]s of CodeInvalid.
func (q ContentQuery) Compile() (*ContentMatcher, error) {
	switch {
	case q.Text == "" || len(q.Text) > 1<<10:
		return nil, Errorf(CodeInvalid, "a text to search for has from 1 to 1024 bytes")
	case bytes.ContainsAny([]byte(q.Text), "\n\x00"):
		return nil, Errorf(CodeInvalid, "a text to search for has no newline and no NUL: it is matched within lines of text")
	case q.Max < 0 || q.Max > 100_000:
		return nil, Errorf(CodeInvalid, "a search gives from 1 to 100,000 lines")
	case q.MaxSize < 0:
		return nil, Errorf(CodeInvalid, "a size isn't negative")
	}
	if q.Max == 0 {
		q.Max = 1000
	}
	if q.MaxSize == 0 {
		q.MaxSize = 64 << 20
	}
	if q.Name == "" {
		q.Name = "*"
	}
	m := &ContentMatcher{ContentQuery: q}
	if !q.Regexp && !q.IgnoreCase {
		m.literal = []byte(q.Text)
		return m, nil
	}
	if !q.Regexp && !strings.ContainsFunc(q.Text, func(r rune) bool { return r >= utf8.RuneSelf }) {
		m.literal = bytes.ToLower([]byte(q.Text))
		m.low = make([]byte, foldPiece+len(m.literal))
		return m, nil
	}
	text := q.Text
	if !q.Regexp {
		if !utf8.ValidString(text) {
			return nil, Errorf(CodeInvalid, "case can't be ignored in a text that isn't UTF-8")
		}
		text = regexp.QuoteMeta(text)
	}
	re, err := compileForLines(text, q.IgnoreCase)
	if err != nil {
		return nil, Errorf(CodeInvalid, "the regular expression can't be read: %w", err)
	}
	m.re = re
	return m, nil
}

// compileForLines makes an expression that is matched against many lines at
// once. What means the ends of the text (\A, \z) means those of a line.
func compileForLines(text string, fold bool) (*regexp.Regexp, error) {
	flags := syntax.Perl &^ syntax.OneLine
	if fold {
		flags |= syntax.FoldCase
	}
	tree, err := syntax.Parse(text, flags)
	if err != nil {
		return nil, err
	}
	var lines func(*syntax.Regexp)
	lines = func(r *syntax.Regexp) {
		switch r.Op {
		case syntax.OpBeginText:
			r.Op = syntax.OpBeginLine
		case syntax.OpEndText:
			r.Op = syntax.OpEndLine
		}
		for _, sub := range r.Sub {
			lines(sub)
		}
	}
	lines(tree)
	return regexp.Compile(tree.String())
}

// find gives the first match in b, which holds whole lines or a part of one.
// It lies within one line.
func (m *ContentMatcher) find(b []byte) (start, end int, ok bool) {
	if m.re == nil {
		if m.low != nil {
			start = m.findFolded(b)
		} else {
			start = bytes.Index(b, m.literal)
		}
		return start, start + len(m.literal), start >= 0
	}
	loc := m.re.FindIndex(b)
	if loc == nil {
		return 0, 0, false
	}
	// \s and negated classes match newlines too. Then the lines are tried one
	// by one from the one where this match begins.
	if bytes.IndexByte(b[loc[0]:loc[1]], '\n') < 0 {
		return loc[0], loc[1], true
	}
	at := bytes.LastIndexByte(b[:loc[0]], '\n') + 1
	for at <= len(b) {
		line, _, more := bytes.Cut(b[at:], []byte{'\n'})
		if loc := m.re.FindIndex(line); loc != nil {
			return at + loc[0], at + loc[1], true
		}
		if !more {
			break
		}
		at += len(line) + 1
	}
	return 0, 0, false
}

// findFolded looks for the literal in pieces in lower case, which is many times
// faster than an expression that ignores case.
func (m *ContentMatcher) findFolded(b []byte) int {
	for at := 0; at < len(b); at += foldPiece {
		piece := b[at:min(len(b), at+foldPiece+len(m.literal)-1)]
		low := m.low[:len(piece)]
		for i, c := range piece {
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			low[i] = c
		}
		if i := bytes.Index(low, m.literal); i >= 0 {
			return at + i
		}
	}
	return -1
}

// Scan reads r, the content of one file, and calls found for each line that
// matches (Path is left empty) until it returns false, which ends the scan with
// ended. An error is r's, or that of a file shorter than expected; a binary
// file has no matches.
func (m *ContentMatcher) Scan(r io.Reader, found func(ContentMatch) bool) (ended bool, err error) {
	if m.buf == nil {
		m.buf = make([]byte, scanBuffer)
	}
	s := scan{m: m, found: found, line: 1}
	n, eof := 0, false
	for first := true; !eof; first = false {
		// Fill the buffer behind what the last round left in it.
		for n < len(m.buf) && !eof {
			k, err := r.Read(m.buf[n:])
			n += k
			switch {
			case errors.Is(err, io.EOF):
				eof = true
			case err != nil:
				return false, err
			}
		}
		if first && bytes.IndexByte(m.buf[:min(n, scanProbe)], 0) >= 0 {
			return false, nil
		}
		used, ended := s.round(m.buf[:n], eof)
		if ended {
			return true, nil
		}
		s.offset += int64(used)
		n = copy(m.buf, m.buf[used:n])
	}
	return false, nil
}

// scan is the state of one file's scan.
type scan struct {
	m      *ContentMatcher
	found  func(ContentMatch) bool
	line   int64 // number of the line that the buffer begins with or in
	offset int64 // of the buffer's first byte
	told   bool  // that line, begun earlier, was given already
}

// round searches a full buffer, or the last one, and says how much of it is done with.
func (s *scan) round(b []byte, last bool) (used int, ended bool) {
	whole := len(b)
	if !last {
		whole = bytes.LastIndexByte(b, '\n') + 1
	}
	if whole == 0 && !last { // no end of line within scanBuffer: a part of a line
		if !s.told {
			if start, end, ok := s.m.find(b); ok {
				s.told = true
				if !s.give(b, start, end) {
					return 0, true
				}
			}
		}
		return len(b) - scanOverlap, false
	}
	for at := 0; at < whole; {
		if s.told { // the rest of a line that was given
			s.told = false
			next := bytes.IndexByte(b[at:whole], '\n')
			if next < 0 {
				break
			}
			at += next + 1
			s.line++
			continue
		}
		start, end, ok := s.m.find(b[at:whole])
		if ok && at+start == whole && whole > 0 && b[whole-1] == '\n' {
			ok = false // an empty match behind the last line
		}
		if !ok {
			s.line += int64(bytes.Count(b[at:whole], []byte{'\n'}))
			break
		}
		s.line += int64(bytes.Count(b[at:at+start], []byte{'\n'}))
		if !s.give(b[:whole], at+start, at+end) {
			return 0, true
		}
		at += start
		s.told = true
	}
	if whole == len(b) && whole > 0 && b[whole-1] == '\n' {
		s.told = false
	}
	return whole, false
}

// give reports the line of b with the match b[start:end].
func (s *scan) give(b []byte, start, end int) bool {
	from := bytes.LastIndexByte(b[:start], '\n') + 1
	to := len(b)
	if n := bytes.IndexByte(b[end:], '\n'); n >= 0 {
		to = end + n
	}
	if to > from && b[to-1] == '\r' && to-1 >= end {
		to--
	}
	if to-from > scanShown { // what is around the match
		around := max(0, scanShown-(end-start)) / 2
		from = max(from, start-around)
		to = min(to, max(from+scanShown, end))
		if to-from > scanShown { // the match itself is long
			to = from + scanShown
		}
	}
	return s.found(ContentMatch{
		Line: s.line, Offset: s.offset + int64(start),
		Text: string(b[from:to]), Start: start - from, End: min(end, to) - from,
	})
}
