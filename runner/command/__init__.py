"""The verbs, one file each; each has one public function of the file's name. Only here do the parts meet."""
