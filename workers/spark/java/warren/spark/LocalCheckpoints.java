package warren.spark;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.UnsupportedFileSystemException;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Files of a stream's checkpoint on this machine's own disks, without starting processes: where Hadoop's native library is
 * not, as with PySpark, Hadoop runs `chmod` and others for each file that Spark writes there, several in a micro-batch.
 * `warren.spark.session` sets it (spark.sql.streaming.checkpointFileManagerClass).
 *
 * <p>The files are the same, so a stream may go on with or without it. Elsewhere than on local disks, Spark's own manager
 * does everything.
 *
 * <p>Crash points: as Spark's own. A file is written beside its name, and then there under its name, whole, or not at all;
 * what was beside is left behind. One that is not to be replaced is not, whoever else makes one at that moment. Like
 * Spark's, it survives a kill of any process, and nothing is synced.
 */
public final class LocalCheckpoints implements CheckpointFileManager {
    private static final String LOCAL = "file";
    private final CheckpointFileManager manager;

    /** Made by Spark, for a checkpoint's folder. */
    public LocalCheckpoints(Path folder, Configuration configuration) throws IOException {
        boolean local = folder.getFileSystem(configuration).getScheme().equals(LOCAL);
        this.manager = local ? new Local(folder, configuration) : spark(folder, configuration);
    }

    /** What Spark would take. */
    private static CheckpointFileManager spark(Path folder, Configuration configuration) {
        try {
            return new FileContextBasedCheckpointFileManager(folder, configuration);
        } catch (Exception problem) { // Scala declares none
            if (problem instanceof UnsupportedFileSystemException) {
                return new FileSystemBasedCheckpointFileManager(folder, configuration);
            }
            throw sneaked(problem);
        }
    }

    /** How the files are written and renamed; all else is Spark's. */
    private static final class Local extends FileSystemBasedCheckpointFileManager {
        Local(Path folder, Configuration configuration) {
            super(folder, configuration);
        }

        private static java.nio.file.Path plain(Path path) {
            return java.nio.file.Path.of(path.toUri().getPath());
        }

        @Override
        public FSDataOutputStream createTempFile(Path path) {
            java.nio.file.Path file = plain(path);
            try {
                return new FSDataOutputStream(new BufferedOutputStream(opened(file)), null);
            } catch (IOException problem) {
                throw sneaked(problem);
            }
        }

        private static OutputStream opened(java.nio.file.Path file) throws IOException {
            try {
                return Files.newOutputStream(file);
            } catch (NoSuchFileException noFolder) {
                Files.createDirectories(file.getParent());
                return Files.newOutputStream(file);
            }
        }

        @Override
        public void renameTempFile(Path from, Path to, boolean overwrite) {
            java.nio.file.Path beside = plain(from);
            java.nio.file.Path file = plain(to);
            try {
                // Of a file of before, which Hadoop wrote: it would not be the new one's.
                Files.deleteIfExists(file.resolveSibling("." + file.getFileName() + ".crc"));
                if (overwrite) {
                    Files.move(beside, file, StandardCopyOption.ATOMIC_MOVE);
                } else {
                    Files.createLink(file, beside); // fails where one is, at the same moment, too
                    Files.delete(beside);
                }
            } catch (java.nio.file.FileAlreadyExistsException there) {
                throw sneaked(new FileAlreadyExistsException("failed to rename " + from + " to " + to + ", which is there"));
            } catch (IOException problem) {
                throw sneaked(problem);
            }
        }
    }

    @Override
    public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
        return manager.createAtomic(path, overwrite);
    }

    @Override
    public FSDataInputStream open(Path path) {
        return manager.open(path);
    }

    @Override
    public FileStatus[] list(Path path, PathFilter filter) {
        return manager.list(path, filter);
    }

    @Override
    public void mkdirs(Path path) {
        manager.mkdirs(path);
    }

    @Override
    public boolean exists(Path path) {
        return manager.exists(path);
    }

    @Override
    public void delete(Path path) {
        manager.delete(path);
    }

    @Override
    public boolean isLocal() {
        return manager.isLocal();
    }

    @Override
    public Path createCheckpointDirectory() {
        return manager.createCheckpointDirectory();
    }

    @Override
    public void close() {
        manager.close();
    }

    /** Scala declares no exceptions, and its callers expect these as they are. */
    @SuppressWarnings("unchecked")
    private static <E extends Throwable> RuntimeException sneaked(Throwable problem) throws E {
        throw (E) problem;
    }
}
