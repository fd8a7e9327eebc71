package execd

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/astrabox/astrabox/sandbox"
)

// A foreign execd says that a process has ended before it has sent the
// process's last output, and forgets how a process ended that nobody was
// attached to. So the shell that runs a process ends the output of each run
// with a marker in every channel and stays. What came before the markers is
// complete, and the markers are kept with the output.
//
// A marker is a record separator (0x1e), the process's nonce, the channel ("o"
// or "e"), the run and its exit status, and another separator. The nonce makes
// sure that output isn't taken for one by accident.
const (
	separator = 0x1e
	// maxMarker is longer than any marker.
	maxMarker = 96
	// maxHeld bounds the output that waits until it is known whether bytes
	// before it belong to a marker.
	maxHeld = 1 << 20
)

// markers takes the markers out of a process's output. Offsets of frames count
// a run's output without its markers; the next run begins after them.
type markers struct {
	head  []byte // what markers begin with
	both  bool   // a run ends with a marker in each of two channels
	at    int64  // offset of the next byte that is given
	raw   int64  // of the daemon's next byte
	run   int
	ended [3]bool // channels of this run whose marker came
	exits int     // runs that have ended
	queue []piece // the first of them is held; empty: nothing is held
	size  int     // bytes in queue
	part  [3][]byte
	out   []sandbox.Frame
}

// piece is output in the order of the daemon.
type piece struct {
	channel sandbox.Channel
	data    []byte
	held    bool // it may be of a marker
}

// mark is what a marker says.
type mark struct {
	channel sandbox.Channel
	run     int
	code    int
}

func newMarkers(nonce string, terminal bool, at int64, run int) *markers {
	return &markers{head: markerHead(nonce), both: !terminal, at: at, raw: at, run: run}
}

func markerHead(nonce string) []byte { return []byte(string(rune(separator)) + nonce + " ") }

// match says whether b begins with a marker: n > 0 is its length, maybe that
// more bytes are needed to know.
func (m *markers) match(b []byte) (k mark, n int, maybe bool) {
	if len(b) < len(m.head) {
		return k, 0, bytes.HasPrefix(m.head, b)
	}
	if !bytes.HasPrefix(b, m.head) {
		return k, 0, false
	}
	end := bytes.IndexByte(b[1:min(len(b), maxMarker)], separator) + 1
	if end == 0 {
		return k, 0, len(b) < maxMarker
	}
	var channel string
	rest := bytes.NewReader(b[len(m.head):end])
	if got, err := fmt.Fscanf(rest, "%1s %d %d", &channel, &k.run, &k.code); got != 3 || err != nil || rest.Len() > 0 {
		return k, 0, false
	}
	switch {
	case k.run < 1 || k.code < 0 || k.code > 255:
		return k, 0, false
	case channel == "o":
		k.channel = sandbox.Stdout
	case channel == "e":
		k.channel = sandbox.Stderr
	default:
		return k, 0, false
	}
	return k, end + 1, false
}

// add takes the daemon's next bytes and gives the frames that they make. Data
// of frames is of b, or of the held pieces.
func (m *markers) add(channel sandbox.Channel, b []byte) []sandbox.Frame {
	m.out = nil
	m.raw += int64(len(b))
	if p := m.part[channel]; len(p) > 0 {
		both := append(p[:len(p):len(p)], b[:min(len(b), maxMarker)]...)
		k, n, maybe := m.match(both)
		switch {
		case maybe:
			m.part[channel] = both
			m.push(channel, b, true)
			b = nil
		case n > 0:
			m.resolve(channel, true)
			b = b[n-len(p):]
			m.end(k, int64(len(b)))
		default:
			m.resolve(channel, false)
		}
	}
	m.scan(channel, b)
	if m.size > maxHeld {
		m.giveUp()
	}
	return m.out
}

func (m *markers) scan(channel sandbox.Channel, b []byte) {
	for at := 0; len(b) > 0; {
		i := bytes.IndexByte(b[at:], separator)
		if i < 0 {
			break
		}
		at += i
		k, n, maybe := m.match(b[at:])
		switch {
		case n > 0:
			m.push(channel, b[:at], false)
			b, at = b[at+n:], 0
			m.end(k, int64(len(b)))
		case maybe:
			m.push(channel, b[:at], false)
			m.part[channel] = bytes.Clone(b[at:])
			m.push(channel, b[at:], true)
			return
		default:
			at++
		}
	}
	m.push(channel, b, false)
}

// push gives output, or puts it behind what is held.
func (m *markers) push(channel sandbox.Channel, b []byte, held bool) {
	switch {
	case len(b) == 0:
	case held || len(m.queue) > 0:
		m.queue = append(m.queue, piece{channel, bytes.Clone(b), held})
		m.size += len(b)
	default:
		m.out = append(m.out, sandbox.Frame{Run: m.run, Offset: m.at, Channel: channel, Data: b})
		m.at += int64(len(b))
	}
}

// resolve says what the held pieces of a channel are: a marker's, which goes,
// or output.
func (m *markers) resolve(channel sandbox.Channel, marker bool) {
	m.part[channel] = nil
	old := m.queue
	m.queue, m.size = nil, 0
	for _, p := range old {
		if p.held && p.channel == channel {
			if marker {
				continue
			}
			p.held = false
		}
		m.push(p.channel, p.data, p.held)
	}
}

// end notes a marker that left bytes of the daemon's follow.
func (m *markers) end(k mark, left int64) {
	m.ended[k.channel] = true
	if m.both && (!m.ended[sandbox.Stdout] || !m.ended[sandbox.Stderr]) {
		return
	}
	m.giveUp() // nothing of this run is still to come
	m.exit(k.run, exitOf(k.code))
	m.at = m.raw - left
}

// giveUp takes all that is held as output.
func (m *markers) giveUp() {
	m.resolve(sandbox.Stdout, false)
	m.resolve(sandbox.Stderr, false)
}

// exit gives the end of a run.
func (m *markers) exit(run int, e sandbox.Exit) {
	m.out = append(m.out, sandbox.Frame{Run: run, Offset: m.at, Exit: &e})
	m.exits, m.run, m.ended = run, run+1, [3]bool{}
}

// begin finds out which run a replay begins in, if it says so. A replay may
// begin between the two markers of a run; st is where the process is.
func (m *markers) begin(replay []byte, st state) {
	first := 0
	var seen [3]bool
	for {
		i := bytes.Index(replay, m.head)
		if i < 0 {
			break
		}
		k, n, _ := m.match(replay[i:])
		if replay = replay[i+max(n, 1):]; n == 0 {
			continue
		}
		if first == 0 {
			first = k.run
		}
		if k.run == first {
			seen[k.channel] = true
		}
	}
	if first == 0 {
		return
	}
	m.run = first
	if over := first < st.run || first == st.run && st.exited; m.both && over {
		// What isn't in the replay came before it.
		m.ended[sandbox.Stdout], m.ended[sandbox.Stderr] = !seen[sandbox.Stdout], !seen[sandbox.Stderr]
	}
}

// signalNames are those that end a process, by what a shell adds 128 to.
var signalNames = map[int]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
	11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
}

// exitOf reads a shell's exit status.
func exitOf(code int) sandbox.Exit { return sandbox.Exit{Code: code, Signal: signalNames[code-128]} }

// state is what the shell of a process writes down about it.
type state struct {
	run    int // 0: it was never started
	exited bool
	code   int
	group  int // process group of the shell
}

// parseState reads "RUN running|exited CODE GROUP".
func parseState(b []byte) (s state, err error) {
	f := bytes.Fields(b)
	if len(f) != 4 {
		return s, fmt.Errorf("the state of a process can't be read: %d fields", len(f))
	}
	s.exited = string(f[1]) == "exited"
	for i, to := range map[int]*int{0: &s.run, 2: &s.code, 3: &s.group} {
		if *to, err = strconv.Atoi(string(f[i])); err != nil || *to < 0 {
			return state{}, fmt.Errorf("the state of a process can't be read: %q", f[i])
		}
	}
	if s.run < 1 || s.group < 2 {
		return state{}, fmt.Errorf("the state of a process can't be read: run %d, group %d", s.run, s.group)
	}
	return s, nil
}
