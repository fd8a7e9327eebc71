package execd

import "time"

// SetDir moves what is kept in a sandbox with a foreign execd.
func (c *Conn) SetDir(dir string) { c.dir = dir }

// SetStall sets how long a reader may keep a foreign execd waiting.
func (c *Conn) SetStall(d time.Duration) { c.stall = d }

// SetSilence sets how long a daemon that is watched may say nothing.
func (c *Conn) SetSilence(d time.Duration) { c.silence = d }
